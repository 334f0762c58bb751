package mcpproxy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"text/template/parse"
	"unicode/utf8"

	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// text/template and not CEL: filling in strings is all there is to do, people know {{.query}}, and it
// costs no module. CEL is for conditions; what loops or grows is cut off here (see templateFuncs).

// argTemplate makes the arguments of a fallback tool out of those of the call.
// The nil template leaves them as they are. It is safe for concurrent use.
type argTemplate struct {
	root argNode
}

// argNode is one value of an argTemplate.
type argNode struct {
	literal []byte             // raw JSON, of what is no template
	field   []string           // the path of a leaf that is one argument, taken as raw JSON
	text    *template.Template // of any other leaf
	open    byte               // { or [ of an object or array, else 0
	items   []argItem          // of that
}

type argItem struct {
	key string // "" in an array
	argNode
}

const (
	maxRendered      = 1 << 20 // bytes of the arguments that go in, and of those that come out
	maxTemplate      = 4 << 10 // bytes of one leaf
	maxTemplateDepth = 100
)

// templateFuncs are the functions a template may use. None makes more of its
// input than a small multiple, and none reaches out of the template. Loops and
// nested templates are refused as well, so that time is bounded by the template.
var templateFuncs = []string{"and", "or", "not", "eq", "ne", "lt", "le", "gt", "ge", "len", "index", "slice", "urlquery"}

// CheckTemplate tells what is wrong with the arguments of a fallback step; nil
// if nothing is.
func CheckTemplate(raw json.RawMessage) error {
	_, err := parseArguments(raw)
	return err
}

// parseArguments reads the arguments of a fallback step, an object whose
// strings are templates over the arguments of the call; nil is the nil template.
func parseArguments(raw json.RawMessage) (*argTemplate, error) {
	if raw == nil {
		return nil, nil
	}
	if !json.Valid(raw) || !utf8.Valid(raw) {
		return nil, errors.New("arguments are no JSON")
	}
	raw = wire.Compact(raw)
	if raw[0] != '{' {
		return nil, errors.New("arguments must be an object")
	}
	root, err := parseNode("arguments", raw, 0)
	if err != nil {
		return nil, err
	}
	return &argTemplate{root}, nil
}

// parseNode reads the value that stands at path.
func parseNode(path string, raw []byte, depth int) (n argNode, err error) {
	if depth > maxTemplateDepth {
		return n, fmt.Errorf("%s: nested too deeply", cut(path, 80))
	}
	switch raw[0] {
	case '"':
		return parseLeaf(path, raw)
	case '{':
		n.open = '{'
		for key, value := range wire.Members(raw) {
			item, err := parseNode(path+"."+key, value, depth+1)
			if err != nil {
				return n, err
			}
			n.items = append(n.items, argItem{key, item})
		}
	case '[':
		n.open = '['
		for value := range wire.Elements(raw) {
			item, err := parseNode(path+"["+strconv.Itoa(len(n.items))+"]", value, depth+1)
			if err != nil {
				return n, err
			}
			n.items = append(n.items, argItem{"", item})
		}
	default:
		n.literal = raw
	}
	return n, nil
}

// parseLeaf reads a string: one argument, a text with arguments, or neither.
func parseLeaf(path string, raw []byte) (n argNode, err error) {
	s, _ := wire.String(raw)
	if !bytes.Contains(raw, []byte("{{")) {
		return argNode{literal: raw}, nil
	}
	if len(s) > maxTemplate {
		return n, fmt.Errorf("%s: a template is at most %d bytes long", path, maxTemplate)
	}
	t, err := template.New(path).Option("missingkey=error").
		Funcs(template.FuncMap{"urlquery": escapeQuery, finish: textOf}).Parse(s)
	if err != nil {
		return n, err
	}
	if n.field = soleField(t.Root); n.field != nil {
		return n, nil
	}
	if err := vet(t.Root); err != nil {
		return n, fmt.Errorf("%s: %w", path, err)
	}
	n.text = t
	return n, nil
}

// soleField returns the path of a template that is one field, else nil.
func soleField(root *parse.ListNode) []string {
	if len(root.Nodes) != 1 {
		return nil
	}
	action, ok := root.Nodes[0].(*parse.ActionNode)
	if !ok || len(action.Pipe.Decl) > 0 || len(action.Pipe.Cmds) != 1 || len(action.Pipe.Cmds[0].Args) != 1 {
		return nil
	}
	field, ok := action.Pipe.Cmds[0].Args[0].(*parse.FieldNode)
	if !ok {
		return nil
	}
	return field.Ident
}

// finish is the function that vet puts at the end of each action. A template cannot name it.
const finish = "text"

// vet refuses what a template must not do, and has every value it prints written by textOf.
func vet(n parse.Node) error {
	switch n := n.(type) {
	case *parse.ListNode:
		if n == nil { // no else
			return nil
		}
		return vetEach(n.Nodes)
	case *parse.IfNode:
		return vetEach([]parse.Node{n.Pipe, n.List, n.ElseList})
	case *parse.WithNode:
		return vetEach([]parse.Node{n.Pipe, n.List, n.ElseList})
	case *parse.ActionNode:
		if err := vet(n.Pipe); err != nil {
			return err
		}
		if len(n.Pipe.Decl) == 0 {
			n.Pipe.Cmds = append(n.Pipe.Cmds, &parse.CommandNode{
				NodeType: parse.NodeCommand, Pos: n.Pos, Args: []parse.Node{parse.NewIdentifier(finish).SetPos(n.Pos)},
			})
		}
		return nil
	case *parse.PipeNode:
		for _, c := range n.Cmds {
			if err := vetEach(c.Args); err != nil {
				return err
			}
		}
		return nil
	case *parse.ChainNode:
		return vet(n.Node)
	case *parse.IdentifierNode:
		if !slices.Contains(templateFuncs, n.Ident) {
			return fmt.Errorf("the function %s is not available", n.Ident)
		}
		return nil
	case *parse.TextNode, *parse.FieldNode, *parse.VariableNode, *parse.DotNode, *parse.NilNode,
		*parse.BoolNode, *parse.NumberNode, *parse.StringNode:
		return nil
	}
	return fmt.Errorf("%s is not allowed here", n)
}

func vetEach(nodes []parse.Node) error {
	for _, n := range nodes {
		if err := vet(n); err != nil {
			return err
		}
	}
	return nil
}

var errNoValue = errors.New("an argument is missing or null")

// textOf is how a value stands in a text: strings and numbers as they are,
// objects and arrays as JSON.
func textOf(v any) (string, error) {
	switch v := v.(type) {
	case nil:
		return "", errNoValue
	case string:
		return v, nil
	case json.Number:
		return v.String(), nil
	}
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return strings.TrimSuffix(b.String(), "\n"), err
}

func escapeQuery(v any) (string, error) {
	s, err := textOf(v)
	if err == nil && len(s) > maxRendered {
		err = errTooLong
	}
	return url.QueryEscape(s), err
}

var errTooLong = fmt.Errorf("the arguments of the fallback are over %d bytes", maxRendered)

// render returns the arguments of the fallback tool for a call with args, the raw
// JSON that came, or nil. A leaf that is one field such as {{.limit}} becomes
// that argument's raw JSON, and goes if there is none; in other templates a
// missing argument is an error.
func (t *argTemplate) render(args []byte) ([]byte, error) {
	if args == nil || bytes.Equal(args, null) {
		args = []byte(`{}`)
	}
	switch {
	case t == nil:
		return args, nil
	case len(args) > maxRendered:
		return nil, errTooLong
	}
	r := rendering{args: args}
	if err := r.node(&t.root); err != nil {
		return nil, err
	}
	return r.out, nil
}

// rendering is one run of an argTemplate.
type rendering struct {
	args    []byte
	decoded map[string]any // args; nil until a text needs them
	out     []byte
}

// absent tells that n is an argument that the call does not have.
func (r *rendering) absent(n *argNode) bool { return n.field != nil && r.argument(n.field) == nil }

// argument returns the raw argument at path, nil if there is none. Of a key that
// stands twice the last one counts, as in texts.
func (r *rendering) argument(path []string) []byte {
	at := r.args
	for _, step := range path {
		var found []byte
		for key, value := range wire.Members(at) {
			if key == step {
				found = value
			}
		}
		if at = found; at == nil {
			return nil
		}
	}
	return at
}

func (r *rendering) node(n *argNode) error {
	switch {
	case n.open != 0:
		if err := r.items(n); err != nil {
			return err
		}
	case n.text != nil:
		if err := r.text(n.text); err != nil {
			return err
		}
	case n.field != nil:
		r.out = append(r.out, r.argument(n.field)...)
	default:
		r.out = append(r.out, n.literal...)
	}
	if len(r.out) > maxRendered {
		return errTooLong
	}
	return nil
}

func (r *rendering) items(n *argNode) error {
	r.out = append(r.out, n.open)
	first := true
	for i := range n.items {
		item := &n.items[i]
		if r.absent(&item.argNode) {
			continue
		}
		if !first {
			r.out = append(r.out, ',')
		}
		first = false
		if n.open == '{' {
			r.out = append(wire.AppendString(r.out, item.key), ':')
		}
		if err := r.node(&item.argNode); err != nil {
			return err
		}
	}
	r.out = append(r.out, n.open+2) // } follows { by two, ] follows [
	return nil
}

func (r *rendering) text(t *template.Template) error {
	if r.decoded == nil {
		dec := json.NewDecoder(bytes.NewReader(r.args))
		dec.UseNumber()
		if err := dec.Decode(&r.decoded); err != nil {
			return err
		}
	}
	w := limitedText{room: maxRendered - len(r.out)}
	if err := t.Execute(&w, r.decoded); err != nil {
		return err
	}
	r.out = wire.AppendString(r.out, string(w.b))
	return nil
}

// limitedText is a writer that takes room bytes.
type limitedText struct {
	b    []byte
	room int
}

func (w *limitedText) Write(p []byte) (int, error) {
	if len(w.b)+len(p) > w.room {
		return 0, errTooLong
	}
	w.b = append(w.b, p...)
	return len(p), nil
}
