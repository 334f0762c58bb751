package main

import (
	"fmt"
	"strings"
	"testing"
)

// outline writes a tree as lines of "line:col path kind text".
func outline(n *node) string {
	var b strings.Builder
	var walk func(n *node)
	walk = func(n *node) {
		fmt.Fprintf(&b, "%d:%d %s %v %q\n", n.line, n.col, n.path, n.kind, n.text)
		for _, m := range n.members {
			walk(m.val)
		}
		for _, item := range n.items {
			walk(item)
		}
	}
	walk(n)
	return b.String()
}

func TestParse(t *testing.T) {
	for name, c := range map[string]struct{ src, want string }{
		"yaml scalars": {"a: 1\nb: yes\nc: true\nd: ~\ne: \"q\\tq\"\nf: 010\ng: !!str 5\nh: 2026-07-28\n", `
			1:1  a mapping ""
			1:4 a a number "1"
			2:4 b a string "yes"
			3:4 c true or false "true"
			4:4 d nothing ""
			5:4 e a string "q\tq"
			6:4 f a number "010"
			7:4 g a string "5"
			8:4 h a string "2026-07-28"`},
		"yaml block text": {"a: |\n  x\n  y\nb: [1, {c: d}]\n", `
			1:1  a mapping ""
			1:4 a a string "x\ny\n"
			4:4 b a list ""
			4:5 b[0] a number "1"
			4:9 b[1] a mapping ""
			4:12 b[1].c a string "d"`},
		"yaml anchors": {"a: &x {b: 1}\nc: *x\nd:\n  <<: *x\n  e: 2\nf:\n  <<: *x\n  b: 3\n", `
			1:1  a mapping ""
			1:8 a a mapping ""
			1:11 a.b a number "1"
			1:8 c a mapping ""
			1:11 c.b a number "1"
			4:3 d a mapping ""
			5:6 d.e a number "2"
			1:11 d.b a number "1"
			7:3 f a mapping ""
			8:6 f.b a number "3"`},
		"json": {"\ufeff{\n\t\"a\": \"\\ud83d\\ude00 \\/ ${X: y} # z\",\n\t\"é\": [9007199254740993, null, false]\n}", `
			1:1  a mapping ""
			2:7 a a string "😀 / ${X: y} # z"
			3:7 é a list ""
			3:8 é[0] a number "9007199254740993"
			3:26 é[1] nothing ""
			3:32 é[2] true or false "false"`},
		"jsonc": {"// c\n{ /* , */ \"a\": \"// no /* comment ,}\", // x\n  \"b\": [1,],\n}", `
			2:1  a mapping ""
			2:16 a a string "// no /* comment ,}"
			3:8 b a list ""
			3:9 b[0] a number "1"`},
		"empty":        {"", `0:0  nothing ""`},
		"comment only": {"# x\n", `0:0  nothing ""`},
		"crlf":         {"a:\r\n  b: 1\r\n", "1:1  a mapping \"\"\n2:3 a a mapping \"\"\n2:6 a.b a number \"1\""},
	} {
		t.Run(name, func(t *testing.T) {
			root, issues := parse([]byte(c.src), false)
			if issues != nil {
				t.Fatal(issues)
			}
			want := strings.ReplaceAll(strings.TrimSpace(c.want), "\t", "") + "\n"
			if got := outline(root); got != want {
				t.Errorf("got\n%swant\n%s", got, want)
			}
		})
	}
}

func TestParseProblems(t *testing.T) {
	var bomb strings.Builder
	bomb.WriteString("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n")
	for i := 1; i < 9; i++ {
		fmt.Fprintf(&bomb, "a%d: &a%d [%s]\n", i, i, strings.Repeat(fmt.Sprintf("*a%d,", i-1), 10))
	}
	for name, c := range map[string]struct {
		src  string
		json bool
		want string
	}{
		"invalid UTF-8":       {"a: 1\nb: \xff\n", false, "2:4: not valid UTF-8"},
		"duplicate":           {"a: 1\nb: {c: 1, c: 2}\n", false, "2:11: b.c: duplicate key, first on line 2"},
		"duplicate in JSON":   {"{\"a\": 1,\n\"\\u0061\": 2}", false, "2:1: a: duplicate key, first on line 1"},
		"unknown anchor":      {"a: *x\n", false, "1:4: a: alias of an unknown anchor \"x\""},
		"anchor inside":       {"a: &x\n  b: *x\n", false, "too large or too deeply nested"},
		"alias bomb":          {bomb.String(), false, "too large or too deeply nested"},
		"deep JSON":           {strings.Repeat("[", 200) + strings.Repeat("]", 200), true, "1:102: "},
		"tag":                 {"a: !!binary x\n", false, "1:4: the tag !!binary is not supported"},
		"mapping as a key":    {"{a: b}: c\n", false, "invalid key"},
		"anchor as a key":     {"&x a: c\n", false, "a key must be a plain string"},
		"tab":                 {"a:\n\tb: 1\n", false, "2:1: "},
		"cut JSON":            {"{\"a\": ", true, "1:6: unexpected end of JSON input"},
		"merge of a scalar":   {"a:\n  <<: 1\n", false, "only a mapping can be merged"},
		"JSON with more text": {"{} x", true, "1:4: invalid character 'x' after top-level value"},
	} {
		t.Run(name, func(t *testing.T) {
			_, issues := parse([]byte(c.src), c.json)
			if len(issues) != 1 || !strings.Contains(issues[0].Error(), c.want) {
				t.Errorf("got %v, want %q", issues, c.want)
			}
		})
	}
}
