package main

import (
	"bytes"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// node is one value of a config file, with its place in it. YAML and JSON
// become the same tree.
type node struct {
	kind      kind
	line, col int    // from 1, in characters; 0 when unknown
	path      string // "mcpServers.github.args[0]"
	text      string // of a scalar: its value; of a number its spelling
	members   []member
	index     map[string]int // of members, by key
	items     []*node
}

// member is one key of a mapping with its value.
type member struct {
	key string
	at  *node // the key itself
	val *node
}

type kind int

const (
	kindNull kind = iota
	kindBool
	kindNumber
	kindText
	kindMapping
	kindSequence
)

func (k kind) String() string {
	return [...]string{"nothing", "true or false", "a number", "a string", "a mapping", "a list"}[k]
}

// scalar tells whether n holds a single value.
func (n *node) scalar() bool { return n.kind == kindBool || n.kind == kindNumber || n.kind == kindText }

// get returns the value of a key, nil when there is none, it is null, or n
// itself is nil.
func (n *node) get(key string) *node {
	if n == nil {
		return nil
	}
	if i, ok := n.index[key]; ok && n.members[i].val.kind != kindNull {
		return n.members[i].val
	}
	return nil
}

// put appends a member unless the key is there already.
func (n *node) put(m member) bool {
	if _, ok := n.index[m.key]; ok {
		return false
	}
	if n.index == nil {
		n.index = map[string]int{}
	}
	n.index[m.key] = len(n.members)
	n.members = append(n.members, m)
	return true
}

// Bounds on what a config file may make us build: aliases multiply nodes.
const (
	maxNodes = 100_000
	maxDepth = 100
)

// tree builds nodes and collects what is wrong with the file's form.
type tree struct {
	issues  []issue
	nodes   int
	anchors map[string]ast.Node
}

var errTooBig = errors.New("too large or too deeply nested")

// parse turns the text of a file into its tree. A file whose text is JSON
// (comments and trailing commas allowed, as VS Code does) or whose name says
// so is read as JSON, everything else as YAML.
func parse(src []byte, isJSON bool) (root *node, issues []issue) {
	src = bytes.TrimPrefix(src, []byte("\ufeff"))
	if bad := invalidUTF8(src); bad >= 0 {
		line, col := newLines(src).at(bad)
		return nil, []issue{{line: line, col: col, msg: "not valid UTF-8"}}
	}
	t := &tree{anchors: map[string]ast.Node{}}
	plain := blankComments(src)
	var err error
	switch {
	case len(bytes.TrimSpace(plain)) == 0:
		root = &node{}
	case isJSON || isObject(plain):
		root, err = t.json(plain)
	default:
		root, err = t.yaml(src)
	}
	if err != nil {
		t.issues = append(t.issues, asIssue(err))
	}
	return root, t.issues
}

func invalidUTF8(src []byte) int {
	for i := 0; i < len(src); {
		r, size := utf8.DecodeRune(src[i:])
		if r == utf8.RuneError && size == 1 {
			return i
		}
		i += size
	}
	return -1
}

func asIssue(err error) issue {
	if i, ok := errors.AsType[issue](err); ok {
		return i
	}
	return issue{msg: err.Error()}
}

// syntaxError is what the YAML parser's errors offer.
type syntaxError interface {
	error
	GetToken() *token.Token
	GetMessage() string
}

// yaml also guards against panics of the parser on odd input.
func (t *tree) yaml(src []byte) (root *node, err error) {
	defer func() {
		if p := recover(); p != nil {
			root, err = nil, errors.New("not valid YAML")
		}
	}()
	file, err := parser.ParseBytes(src, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		if se, ok := errors.AsType[syntaxError](err); ok && se.GetToken() != nil {
			pos := se.GetToken().Position
			return nil, issue{line: pos.Line, col: pos.Column, msg: se.GetMessage()}
		}
		return nil, err
	}
	root = &node{}
	seen := false
	for _, doc := range file.Docs {
		if doc.Body == nil {
			continue
		}
		if seen {
			return nil, place(doc.Body).issue("a second document in the file")
		}
		seen = true
		if root, err = t.value(doc.Body, "", 0); err != nil {
			return nil, err
		}
	}
	return root, nil
}

// place returns an empty node where n stands.
func place(n ast.Node) *node {
	out := &node{}
	if tk := n.GetToken(); tk != nil && tk.Position != nil {
		out.line, out.col = tk.Position.Line, tk.Position.Column
	}
	return out
}

// value converts n, following aliases.
func (t *tree) value(n ast.Node, path string, depth int) (*node, error) {
	if t.nodes++; t.nodes > maxNodes || depth > maxDepth {
		return nil, place(n).issue("%v", errTooBig)
	}
	out := place(n)
	out.path = path
	switch n := n.(type) {
	case *ast.AnchorNode:
		t.anchors[n.Name.GetToken().Value] = n.Value
		return t.value(n.Value, path, depth+1)
	case *ast.AliasNode:
		target, ok := t.anchors[n.Value.GetToken().Value]
		if !ok {
			return nil, out.issue("alias of an unknown anchor %q", n.Value.GetToken().Value)
		}
		return t.value(target, path, depth+1)
	case *ast.TagNode:
		return t.tagged(n, path, depth)
	case *ast.MappingNode:
		return out, t.mapping(out, n.Values, depth)
	case *ast.MappingValueNode:
		return out, t.mapping(out, []*ast.MappingValueNode{n}, depth)
	case *ast.SequenceNode:
		out.kind = kindSequence
		for i, v := range n.Values {
			item, err := t.value(v, fmt.Sprintf("%s[%d]", path, i), depth+1)
			if err != nil {
				return nil, err
			}
			out.items = append(out.items, item)
		}
	default:
		return out, scalar(out, n)
	}
	return out, nil
}

func scalar(out *node, n ast.Node) error {
	switch n := n.(type) {
	case *ast.NullNode:
	case *ast.BoolNode:
		out.kind, out.text = kindBool, fmt.Sprint(n.Value)
	case *ast.IntegerNode, *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		out.kind, out.text = kindNumber, n.GetToken().Value
	case *ast.StringNode:
		out.kind, out.text = kindText, n.Value
	case *ast.LiteralNode:
		out.kind, out.text = kindText, n.Value.Value
	default:
		return out.issue("%s is not expected here", n.Type().YAMLName())
	}
	return nil
}

// tagged knows the one tag that matters in a config: !!str makes a string of
// what looks like something else.
func (t *tree) tagged(n *ast.TagNode, path string, depth int) (*node, error) {
	if n.Value == nil {
		return nil, place(n).issue("a tag without a value")
	}
	out, err := t.value(n.Value, path, depth+1)
	if err != nil {
		return nil, err
	}
	if n.Start.Value != "!!str" || !out.scalar() {
		return nil, place(n).issue("the tag %s is not supported", n.Start.Value)
	}
	out.kind = kindText
	out.line, out.col = place(n).line, place(n).col
	return out, nil
}

func (t *tree) mapping(out *node, values []*ast.MappingValueNode, depth int) error {
	out.kind = kindMapping
	var merged []*node
	for i, mv := range values {
		if i == 0 {
			at := place(mv.Key)
			out.line, out.col = at.line, at.col
		}
		if _, ok := mv.Key.(*ast.MergeKeyNode); ok {
			m, err := t.value(mv.Value, out.path, depth+1)
			if err != nil {
				return err
			}
			merged = append(merged, m)
			continue
		}
		key := place(mv.Key)
		if err := scalar(key, mv.Key); err != nil || !key.scalar() {
			return key.issue("a key must be a plain string")
		}
		key.path = join(out.path, key.text)
		val, err := t.value(mv.Value, key.path, depth+1)
		if err != nil {
			return err
		}
		t.add(out, key, val)
	}
	return merge(out, merged)
}

// merge adds the members of merged mappings ("<<: *anchor") that out lacks.
func merge(out *node, merged []*node) error {
	for _, m := range merged {
		switch m.kind {
		case kindMapping:
			for _, mm := range m.members {
				out.put(mm)
			}
		case kindSequence:
			if err := merge(out, m.items); err != nil {
				return err
			}
		default:
			return m.issue("only a mapping can be merged")
		}
	}
	return nil
}

// add appends a member and notes a duplicate.
func (t *tree) add(out, key, val *node) {
	if !out.put(member{key.text, key, val}) {
		first := out.members[out.index[key.text]].at.line
		t.issues = append(t.issues, key.issue("duplicate key, first on line %d", first))
	}
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}
