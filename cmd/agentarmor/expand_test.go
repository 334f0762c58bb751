package main

import (
	"strings"
	"testing"
)

func mapEnv(m map[string]string) lookup {
	return func(name string) (string, bool) {
		v, ok := m[name]
		return v, ok
	}
}

func TestExpand(t *testing.T) {
	env := mapEnv(map[string]string{"A": "one", "EMPTY": "", "ODD": `"x": ${A} $$ }`, "_u1": "u"})
	for in, want := range map[string]string{
		"plain":                  "plain",
		"":                       "",
		"${A}":                   "one",
		"a${A}b${A}c":            "aonebonec",
		"${env:A}":               "one",
		"${env:NO:-d}":           "d",
		"${_u1}":                 "u",
		"${EMPTY}":               "",
		"${EMPTY:-d}":            "d",
		"${NO:-}":                "",
		"${NO:-d}":               "d",
		"${NO:-a:-b}":            "a:-b",
		"${NO:-${A}}":            "one",
		"${NO:-x${NO2:-${A}y}z}": "xoneyz",
		"${A:-${NO}}":            "one", // a default that is not needed is not read
		"${NO:-$${A}}":           "${A}",
		"$$":                     "$",
		"$${A}":                  "${A}",
		"$$$${A}":                "$${A}",
		"$$${A}":                 "$one",
		"$":                      "$",
		"5$":                     "5$",
		"$5 and $HOME":           "$5 and $HOME",
		"${ODD}":                 `"x": ${A} $$ }`, // values are not expanded again
	} {
		got, problems := expand(in, env)
		if got != want || problems != nil {
			t.Errorf("expand(%q) = %q, %q; want %q", in, got, problems, want)
		}
	}
}

func TestExpandProblems(t *testing.T) {
	env := mapEnv(map[string]string{"SECRET": "hunter2"})
	for in, want := range map[string][]string{
		"${NO}":                {"the environment variable NO is not set"},
		"${NO}${SECRET}${NO2}": {"NO is not set", "NO2 is not set"},
		"${NO:-${NO2}}":        {"NO2 is not set"},
		"${SECRET":             {"without its }"},
		"${A:-${SECRET}":       {"without its }"},
		"${}":                  {"a variable's name has"},
		"${1A}":                {"a variable's name has"},
		"${A-B}":               {"a variable's name has"},
		"${ A }":               {"a variable's name has"},
		"${input:tok en}":      {"${input:tok en} is a question"},
		"${workspaceFolder}/x": {"${workspaceFolder} is filled in by an editor only"},
		"${command:pick}":      {"${command:…} is not supported"},
		strings.Repeat("${A:-", 30) + strings.Repeat("}", 30): {"without its }"},
	} {
		_, problems := expand(in, env)
		if len(problems) != len(want) {
			t.Errorf("expand(%q): %q, want %q", in, problems, want)
			continue
		}
		for i, p := range problems {
			if !strings.Contains(p, want[i]) || strings.Contains(p, "hunter2") {
				t.Errorf("expand(%q): %q, want %q", in, p, want[i])
			}
		}
	}
}

func TestSuggest(t *testing.T) {
	keys := []string{"command", "call_timeout", "args", "url", "env"}
	for in, want := range map[string]string{
		"comand": "command", "Command": "command", "callTimeout": "call_timeout", "call-timeout": "call_timeout",
		"arg": "args", "uri": "url", "enviroment": "", "zzzzzz": "",
	} {
		if got := suggest(in, keys); got != want {
			t.Errorf("suggest(%q) = %q, want %q", in, got, want)
		}
	}
}
