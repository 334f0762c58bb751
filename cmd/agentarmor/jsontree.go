package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"sort"
	"unicode/utf8"
)

// isObject tells whether src is one JSON object.
func isObject(src []byte) bool {
	return bytes.HasPrefix(bytes.TrimSpace(src), []byte("{")) && json.Valid(src)
}

// json builds the tree of a JSON text.
func (t *tree) json(src []byte) (*node, error) {
	lines := newLines(src)
	var whole json.RawMessage
	if err := json.Unmarshal(src, &whole); err != nil {
		out := issue{msg: err.Error()}
		if se, ok := errors.AsType[*json.SyntaxError](err); ok {
			out.line, out.col = lines.at(max(int(se.Offset)-1, 0))
		}
		return nil, out
	}
	dec := json.NewDecoder(bytes.NewReader(src))
	dec.UseNumber()
	r := &jsonReader{tree: t, dec: dec, src: src, lines: lines}
	return r.value("", 0)
}

// jsonReader walks the tokens of a valid JSON text and knows where each stands.
type jsonReader struct {
	*tree
	dec   *json.Decoder
	src   []byte
	lines lines
}

// next returns the next token and a node where it starts.
func (r *jsonReader) next() (json.Token, *node, error) {
	start := int(r.dec.InputOffset())
	for start < len(r.src) && bytes.IndexByte([]byte(" \t\r\n,:"), r.src[start]) >= 0 {
		start++
	}
	line, col := r.lines.at(start)
	tok, err := r.dec.Token()
	return tok, &node{line: line, col: col}, err
}

func (r *jsonReader) value(path string, depth int) (*node, error) {
	tok, out, err := r.next()
	if err != nil {
		return nil, err
	}
	if r.nodes++; r.nodes > maxNodes || depth > maxDepth {
		return nil, out.issue("%v", errTooBig)
	}
	out.path = path
	switch tok := tok.(type) {
	case json.Delim:
		if tok == '{' {
			return out, r.object(out, depth)
		}
		return out, r.array(out, depth)
	case bool:
		out.kind, out.text = kindBool, fmt.Sprint(tok)
	case json.Number:
		out.kind, out.text = kindNumber, tok.String()
	case string:
		out.kind, out.text = kindText, tok
	}
	return out, nil
}

func (r *jsonReader) object(out *node, depth int) error {
	out.kind = kindMapping
	for r.dec.More() {
		tok, key, err := r.next()
		if err != nil {
			return err
		}
		key.kind, key.text = kindText, tok.(string)
		key.path = join(out.path, key.text)
		val, err := r.value(key.path, depth+1)
		if err != nil {
			return err
		}
		r.add(out, key, val)
	}
	_, err := r.dec.Token()
	return err
}

func (r *jsonReader) array(out *node, depth int) error {
	out.kind = kindSequence
	for r.dec.More() {
		item, err := r.value(fmt.Sprintf("%s[%d]", out.path, len(out.items)), depth+1)
		if err != nil {
			return err
		}
		out.items = append(out.items, item)
	}
	_, err := r.dec.Token()
	return err
}

// blankComments overwrites comments and trailing commas with spaces, so that
// what VS Code accepts in its JSON files is JSON and every place stays put.
// The text of a YAML file may come out as nonsense; it is used for JSON only.
func blankComments(src []byte) []byte {
	out := bytes.Clone(src)
	comma := -1 // of a comma that nothing but blanks has followed yet
	for i := 0; i < len(out); i++ {
		switch c := out[i]; {
		case c == '"':
			i = stringEnd(out, i)
			comma = -1
		case c == '/' && i+1 < len(out) && (out[i+1] == '/' || out[i+1] == '*'):
			i = blank(out, i, commentEnd(out, i))
		case c == ',':
			comma = i
		case (c == '}' || c == ']') && comma >= 0:
			out[comma] = ' '
			comma = -1
		case c != ' ' && c != '\t' && c != '\r' && c != '\n':
			comma = -1
		}
	}
	return out
}

// stringEnd returns the index of the quote that closes the string at start.
func stringEnd(b []byte, start int) int {
	for i := start + 1; i < len(b); i++ {
		switch b[i] {
		case '\\':
			i++
		case '"':
			return i
		}
	}
	return len(b)
}

func commentEnd(b []byte, start int) int {
	mark := []byte("\n")
	if b[start+1] == '*' {
		mark = []byte("*/")
	}
	end := bytes.Index(b[start+2:], mark)
	if end < 0 {
		return len(b)
	}
	return start + 2 + end + len(mark)
}

// blank overwrites b[from:to] except line breaks and returns to-1.
func blank(b []byte, from, to int) int {
	for i := from; i < to; i++ {
		if b[i] != '\n' {
			b[i] = ' '
		}
	}
	return to - 1
}

// lines finds line and column of an offset.
type lines struct {
	src    []byte
	starts []int
}

func newLines(src []byte) lines {
	l := lines{src, []int{0}}
	for i, c := range src {
		if c == '\n' {
			l.starts = append(l.starts, i+1)
		}
	}
	return l
}

func (l lines) at(offset int) (line, col int) {
	offset = min(offset, len(l.src))
	line = sort.SearchInts(l.starts, offset+1)
	return line, 1 + utf8.RuneCount(l.src[l.starts[line-1]:offset])
}
