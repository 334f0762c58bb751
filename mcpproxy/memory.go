package mcpproxy

import (
	"bytes"
	"cmp"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// memory keeps the last listing of each upstream on disk, so that a slow or
// dead one has its entries at the next start. A listing belongs to one exact
// way of starting the upstream: with another argument, token or address it is
// another upstream. Of those only an HMAC reaches the disk. A nil memory
// remembers nothing. Processes may share a directory, and all methods are safe
// for concurrent use.
//
// A file is lines of raw JSON, so that entries come back byte for byte:
//
//	agentarmor-catalog 1 <HMAC of all that follows, hex>
//	head {"ttlMs":0,"public":false,"protocol":"2025-11-25","instructions":"…"}
//	server {…}
//	capabilities {…}
//	tool {…}
//	…
//	pin {…}
//
// A pin is the definition that was accepted of a tool which is listed
// otherwise, or not at all.
type memory struct {
	dir string // of the files
	key []byte
}

const (
	memoryMagic = "agentarmor-catalog 1 "
	keySize     = 32 // bytes
	// keepFor is how long a file that nobody refreshes stays.
	keepFor = 30 * 24 * time.Hour
	// secretSize is the shortest env or header value that is taken for a
	// secret when the upstream itself says it.
	secretSize = 16
)

var errSaysSecret = errors.New("not remembered: the listing contains one of the upstream's env or header values")

// memoryHead is the first line of what is remembered.
type memoryHead struct {
	TTL          int64  `json:"ttlMs"`
	Public       bool   `json:"public"`
	Protocol     string `json:"protocol"`
	Instructions string `json:"instructions"`
}

// openMemory prepares dir. "" is a memory that remembers nothing.
func openMemory(dir string) (*memory, error) {
	if dir == "" {
		return nil, nil
	}
	files := filepath.Join(dir, "catalog")
	if err := os.MkdirAll(files, 0o700); err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	key, err := openKey(filepath.Join(dir, "key"))
	if err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	forget(files, time.Now().Add(-keepFor))
	return &memory{files, key}, nil
}

// load returns the listing remembered of u, nil if there is none or its file
// is broken.
func (m *memory) load(u *UpstreamConfig) *listing {
	if m == nil {
		return nil
	}
	if body := m.read(u); bytes.HasPrefix(body, []byte("head ")) {
		return decodeListing(body)
	}
	return nil
}

// known returns the definitions that were accepted of the tools of u, by name.
func (m *memory) known(u *UpstreamConfig) map[string]json.RawMessage {
	if m == nil {
		return nil
	}
	l := decodeListing(m.read(u))
	if l == nil {
		return nil
	}
	return l.known()
}

// known are the definitions that were accepted, by the name of the tool.
func (l *listing) known() map[string]json.RawMessage {
	known := definitions(l.Tools)
	maps.Copy(known, definitions(l.Pins))
	return known
}

// read returns what is remembered of u, nil if there is nothing or it is broken.
func (m *memory) read(u *UpstreamConfig) []byte {
	b, err := os.ReadFile(m.file(u))
	if err != nil {
		return nil
	}
	magic, body, _ := bytes.Cut(b, []byte("\n"))
	sum, ok := bytes.CutPrefix(magic, []byte(memoryMagic))
	if !ok || !hmac.Equal(sum, m.sum(body)) {
		return nil
	}
	return body
}

// save remembers l as the listing of u. Of one that says a secret no more is
// kept than what is known of its tools.
func (m *memory) save(u *UpstreamConfig, l *listing) error {
	if m == nil {
		return nil
	}
	body, err := encodeListing(l)
	if err != nil {
		return err
	}
	secret := says(body, u)
	if secret {
		body = encodePins(l.known(), u)
	}
	head := append(append([]byte(memoryMagic), m.sum(body)...), '\n')
	if err := writeFile(m.file(u), append(head, body...), os.Rename); err != nil || !secret {
		return err
	}
	return errSaysSecret
}

// encodePins writes definitions alone, but for those that say a secret of u.
func encodePins(known map[string]json.RawMessage, u *UpstreamConfig) []byte {
	var b bytes.Buffer
	for _, name := range sortedKeys(known) {
		if !says(known[name], u) {
			writeLine(&b, "pin", known[name])
		}
	}
	return b.Bytes()
}

func writeLine(b *bytes.Buffer, what string, raw []byte) {
	b.WriteString(what + " ")
	// Between tokens, where alone one may stand, a line break is a space.
	b.Write(bytes.ReplaceAll(raw, []byte("\n"), []byte(" ")))
	b.WriteByte('\n')
}

// file names the file of u after everything that decides what u offers.
func (m *memory) file(u *UpstreamConfig) string {
	h := hmac.New(sha256.New, m.key)
	write := func(parts ...string) {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(parts)))
		h.Write(n[:])
		for _, p := range parts {
			binary.BigEndian.PutUint64(n[:], uint64(len(p)))
			h.Write(n[:])
			h.Write([]byte(p))
		}
	}
	write(u.Name, u.Command, u.Cwd, u.URL, u.Type)
	write(u.Args...)
	for _, values := range []map[string]string{u.Env, u.Headers} {
		var pairs []string
		for _, k := range slices.Sorted(maps.Keys(values)) {
			pairs = append(pairs, k, values[k])
		}
		write(pairs...)
	}
	return filepath.Join(m.dir, hex.EncodeToString(h.Sum(nil)))
}

func (m *memory) sum(body []byte) []byte {
	h := hmac.New(sha256.New, m.key)
	h.Write([]byte(memoryMagic)) // keeps the sums of bodies and of file names apart
	h.Write(body)
	return hex.AppendEncode(nil, h.Sum(nil))
}

func encodeListing(l *listing) ([]byte, error) {
	head, err := json.Marshal(memoryHead{l.TTL, l.Public, l.Protocol, l.Instructions})
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	writeLine(&b, "head", head)
	if l.Server != nil {
		writeLine(&b, "server", l.Server)
	}
	if l.Capabilities != nil {
		writeLine(&b, "capabilities", l.Capabilities)
	}
	for k := range kinds {
		for _, raw := range *l.entries(k) {
			writeLine(&b, k.String(), raw)
		}
	}
	for _, raw := range l.Pins {
		writeLine(&b, "pin", raw)
	}
	return b.Bytes(), nil
}

// decodeListing trusts that encodeListing wrote body; nil if it did not.
func decodeListing(body []byte) *listing {
	l := &listing{}
	for line := range bytes.Lines(body) {
		what, raw, _ := bytes.Cut(bytes.TrimSuffix(line, []byte("\n")), []byte(" "))
		switch string(what) {
		case "head":
			var h memoryHead
			if json.Unmarshal(raw, &h) != nil {
				return nil
			}
			l.TTL, l.Public, l.Protocol, l.Instructions = h.TTL, h.Public, h.Protocol, h.Instructions
		case "server":
			l.Server = raw
		case "capabilities":
			l.Capabilities = raw
		case "pin":
			l.Pins = append(l.Pins, raw)
		default:
			k := slices.IndexFunc(kindTable[:], func(row kindRow) bool { return row.noun == string(what) })
			if k < 0 {
				return nil
			}
			entries := l.entries(listKind(k))
			*entries = append(*entries, raw)
		}
	}
	return l
}

// says tells whether an upstream repeats a secret it was given.
func says(body []byte, u *UpstreamConfig) bool {
	for _, values := range []map[string]string{u.Env, u.Headers} {
		for _, v := range values {
			for part := range strings.FieldsSeq(v) { // of "Bearer <token>" too
				if len(part) >= secretSize && bytes.Contains(body, []byte(part)) {
					return true
				}
			}
		}
	}
	return false
}

// openKey reads the key and creates it where there is none or a broken one.
// Of several processes that do so at once, all end up with the same key.
func openKey(name string) ([]byte, error) {
	key, err := os.ReadFile(name)
	if err == nil && len(key) == keySize {
		return key, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	put := os.Rename
	if err != nil {
		put = linkNew
	}
	fresh := make([]byte, keySize)
	_, _ = rand.Read(fresh) // never fails
	if err := writeFile(name, fresh, put); err != nil {
		return nil, err
	}
	if key, err = os.ReadFile(name); err == nil && len(key) != keySize {
		err = errors.New("key file is broken")
	}
	return key, err
}

// linkNew names a file unless the name is taken; file systems without links
// rename it.
func linkNew(from, to string) error {
	if err := os.Link(from, to); err == nil || errors.Is(err, fs.ErrExist) {
		return nil
	}
	return os.Rename(from, to)
}

// writeFile writes a file of mode 0600 that is complete once it has its name,
// which put gives to it.
func writeFile(name string, b []byte, put func(from, to string) error) error {
	f, err := os.CreateTemp(filepath.Dir(name), "tmp-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(b)
	if err := cmp.Or(err, f.Close()); err != nil {
		return err
	}
	return put(f.Name(), name)
}

// forget removes files that were last written before t, which upstreams with
// another token have left behind.
func forget(dir string, t time.Time) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() && info.ModTime().Before(t) {
			_ = os.Remove(filepath.Join(dir, e.Name()))
		}
	}
}
