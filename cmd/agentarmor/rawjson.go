package main

import (
	"encoding/json"

	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// raw reads a value of any shape as JSON: variables are expanded in every
// string, numbers stay as spelled and keys in their order.
func (d *decoder) raw(p *json.RawMessage) setter {
	return func(n *node) { *p = d.appendJSON(nil, n) }
}

// arguments reads the arguments of a tool: raw JSON that is an object.
func (d *decoder) arguments(p *json.RawMessage) setter {
	return func(n *node) {
		if d.want(n, kindMapping) {
			d.raw(p)(n)
		}
	}
}

func (d *decoder) appendJSON(b []byte, n *node) []byte {
	switch n.kind {
	case kindNull:
		return append(b, "null"...)
	case kindMapping:
		b = append(b, '{')
		for i, m := range n.members {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(wire.AppendString(b, m.key), ':')
			b = d.appendJSON(b, m.val)
		}
		return append(b, '}')
	case kindSequence:
		b = append(b, '[')
		for i, item := range n.items {
			if i > 0 {
				b = append(b, ',')
			}
			b = d.appendJSON(b, item)
		}
		return append(b, ']')
	case kindText:
		s, _ := d.scalar(n)
		return wire.AppendString(b, s)
	}
	// YAML has 0x1f, 1_000 and .inf.
	if !json.Valid([]byte(n.text)) {
		d.fail(n, `not a number in JSON; write it in decimal, or in quotes to pass it as a string`)
	}
	return append(b, n.text...)
}

// texts calls see for every string in n.
func (n *node) texts(see func(leaf *node)) {
	if n.kind == kindText {
		see(n)
	}
	for _, m := range n.members {
		m.val.texts(see)
	}
	for _, item := range n.items {
		item.texts(see)
	}
}
