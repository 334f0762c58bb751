package mcpproxy

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func openTestMemory(t *testing.T, dir string) *memory {
	t.Helper()
	m, err := openMemory(dir)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func testListing() *listing {
	return &listing{
		Tools:        append(oddTools(), json.RawMessage(`{"name":"<&> 9007199254740993", "x":  1}`)),
		Prompts:      raws(`{"name":"p"}`),
		Resources:    raws(`{"uri":"file:///x"}`),
		Templates:    raws(`{"uriTemplate":"file:///{x}"}`),
		TTL:          300,
		Public:       true,
		Server:       json.RawMessage(`{"name":"s", "version":"1"}`),
		Instructions: "Two\nlines, \"quotes\" and <tags>.",
		Protocol:     "2025-11-25",
		Capabilities: json.RawMessage(`{"tools":{}}`),
	}
}

func TestMemoryComesBackByteForByte(t *testing.T) {
	dir := t.TempDir()
	u := &UpstreamConfig{Name: "fs", Command: "server"}
	for _, want := range []*listing{testListing(), {}} {
		if err := openTestMemory(t, dir).save(u, want); err != nil {
			t.Fatal(err)
		}
		got := openTestMemory(t, dir).load(u)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-saved +loaded):\n%s", diff)
		}
		if got.hash() != want.hash() {
			t.Error("the hash changed on disk")
		}
	}
	broken := &listing{Tools: raws("{\"name\":\n\"x\"}")}
	if err := openTestMemory(t, dir).save(u, broken); err != nil {
		t.Fatal(err)
	}
	if got := openTestMemory(t, dir).load(u); string(got.Tools[0]) != `{"name": "x"}` {
		t.Errorf("a line break between tokens: got %s", got.Tools[0])
	}
}

func TestMemoryKnowsOneExactUpstream(t *testing.T) {
	m := openTestMemory(t, t.TempDir())
	base := func() *UpstreamConfig {
		return &UpstreamConfig{Name: "n", Command: "c", Args: []string{"a", "b"}, URL: "u",
			Env: map[string]string{"K": "v"}, Headers: map[string]string{"H": "w"}}
	}
	if err := m.save(base(), testListing()); err != nil {
		t.Fatal(err)
	}
	if m.load(base()) == nil {
		t.Fatal("the same configuration is not found")
	}
	for name, change := range map[string]func(u *UpstreamConfig){
		"name":         func(u *UpstreamConfig) { u.Name = "m" },
		"command":      func(u *UpstreamConfig) { u.Command = "d" },
		"args":         func(u *UpstreamConfig) { u.Args = []string{"ab"} },
		"cwd":          func(u *UpstreamConfig) { u.Cwd = "/" },
		"url":          func(u *UpstreamConfig) { u.URL = "v" },
		"env value":    func(u *UpstreamConfig) { u.Env["K"] = "w" },
		"env key":      func(u *UpstreamConfig) { u.Env = map[string]string{"L": "v"} },
		"env more":     func(u *UpstreamConfig) { u.Env["L"] = "" },
		"header value": func(u *UpstreamConfig) { u.Headers["H"] = "v" },
		"swapped":      func(u *UpstreamConfig) { u.Env, u.Headers = u.Headers, u.Env },
	} {
		u := base()
		change(u)
		if m.load(u) != nil {
			t.Errorf("another %s finds the same file", name)
		}
	}
	if other := openTestMemory(t, t.TempDir()); filepath.Base(other.file(base())) == filepath.Base(m.file(base())) {
		t.Error("the name of a file does not depend on the key")
	}
}

func TestMemoryHoldsNoSecret(t *testing.T) {
	const token, password = "ghp_0123456789abcdef", "pa55word"
	dir := t.TempDir()
	m := openTestMemory(t, dir)
	u := &UpstreamConfig{Name: "gh", Command: "server", Args: []string{"--key=argsecret"},
		Env: map[string]string{"TOKEN": token, "PASS": password}, Headers: map[string]string{"Authorization": "Bearer " + token}}
	if err := m.save(u, testListing()); err != nil {
		t.Fatal(err)
	}
	files := 0
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		files++
		if info, err := d.Info(); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v, %v", path, info.Mode(), err)
		}
		b, err := os.ReadFile(path)
		for _, secret := range []string{token, password, "argsecret", "TOKEN", "Authorization"} {
			if bytes.Contains(b, []byte(secret)) || strings.Contains(path, secret) {
				t.Errorf("%s holds %s", path, secret)
			}
		}
		return err
	})
	if err != nil || files != 2 {
		t.Errorf("%d files, %v; want the key and one catalog", files, err)
	}

	told := testListing()
	told.Instructions = "I use " + token
	if err := m.save(u, told); !errors.Is(err, errSaysSecret) || strings.Contains(err.Error(), token) {
		t.Errorf("a listing with a secret in it: %v", err)
	}
	if m.load(u) != nil {
		t.Error("the older listing must not stay in its place")
	}
}

func TestMemoryBrokenFiles(t *testing.T) {
	m := openTestMemory(t, t.TempDir())
	u := &UpstreamConfig{Name: "fs"}
	if err := m.save(u, testListing()); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(m.file(u))
	if err != nil {
		t.Fatal(err)
	}
	flipped := bytes.Replace(whole, []byte("empty"), []byte("emptz"), 1)
	for name, b := range map[string][]byte{
		"empty": {}, "cut": whole[:len(whole)/2], "one byte short": whole[:len(whole)-1],
		"changed": flipped, "head only": whole[:20], "noise": []byte("{}\n{}\n"),
	} {
		if err := os.WriteFile(m.file(u), b, 0o600); err != nil {
			t.Fatal(err)
		}
		if got := m.load(u); got != nil {
			t.Errorf("%s: got a listing with %d tools", name, len(got.Tools))
		}
	}
}

func TestMemoryKey(t *testing.T) {
	dir := t.TempDir()
	memories := make([]*memory, 8)
	var wg sync.WaitGroup
	for i := range memories {
		wg.Go(func() { memories[i], _ = openMemory(dir) })
	}
	wg.Wait()
	for _, m := range memories {
		if m == nil || !bytes.Equal(m.key, memories[0].key) || len(m.key) != keySize {
			t.Fatal("processes that start together must agree on one key")
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "key"), []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	if m := openTestMemory(t, dir); len(m.key) != keySize || bytes.Equal(m.key, memories[0].key) {
		t.Error("a broken key is not replaced")
	}
	if found, _ := filepath.Glob(filepath.Join(dir, "tmp-*")); found != nil {
		t.Errorf("left behind: %v", found)
	}
}

func TestMemoryForgets(t *testing.T) {
	dir := t.TempDir()
	m := openTestMemory(t, dir)
	stale, live := &UpstreamConfig{Name: "stale"}, &UpstreamConfig{Name: "live"}
	for _, u := range []*UpstreamConfig{stale, live} {
		if err := m.save(u, testListing()); err != nil {
			t.Fatal(err)
		}
	}
	long := time.Now().Add(-keepFor - time.Hour)
	if err := os.Chtimes(m.file(stale), long, long); err != nil {
		t.Fatal(err)
	}
	m = openTestMemory(t, dir)
	if m.load(stale) != nil || m.load(live) == nil {
		t.Error("want the stale file gone and the other kept")
	}
}

func TestMemoryOfNothing(t *testing.T) {
	m, err := openMemory("")
	if m != nil || err != nil || m.load(&UpstreamConfig{}) != nil || m.save(&UpstreamConfig{}, testListing()) != nil {
		t.Error("no directory must mean no memory and no error")
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openMemory(file); err == nil {
		t.Error("a state directory that is a file must be an error")
	}
}

func TestListingHash(t *testing.T) {
	var none *listing
	if none.hash() != "" {
		t.Error("nil has a hash")
	}
	seen := map[string]int{}
	for i, l := range []*listing{
		{}, {Tools: raws("1", "2")}, {Tools: raws("12")}, {Tools: raws("2", "1")}, {Prompts: raws("1", "2")}, {Tools: raws("1"), Prompts: raws("2")},
	} {
		if j, ok := seen[l.hash()]; ok {
			t.Errorf("listings %d and %d have one hash", j, i)
		}
		seen[l.hash()] = i
	}
	if (&listing{}).hash() != (&listing{TTL: 5, Protocol: "x", Instructions: "y"}).hash() {
		t.Error("the hash is of the entries only")
	}
}
