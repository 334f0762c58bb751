package main

import (
	"fmt"
	"strings"
)

// lookup finds an environment variable, as os.LookupEnv does.
type lookup func(name string) (value string, set bool)

// orUnset is f for an entry that is switched off: it need not have its variables.
func (f lookup) orUnset(name string) (string, bool) {
	if value, set := f(name); set {
		return value, true
	}
	return "unset", true
}

// expand replaces ${NAME}, ${NAME:-default} (the default may hold more of
// them) and $$ in s. Any other $ stays. What a variable holds is not expanded
// again. It returns every problem; none of them quotes a value.
func expand(s string, env lookup) (string, []string) {
	if !strings.Contains(s, "$") {
		return s, nil
	}
	x := &expander{env: env}
	out := x.text(s, 0)
	return out, x.problems
}

type expander struct {
	env      lookup
	problems []string
}

// maxNesting bounds ${A:-${B:-…}}.
const maxNesting = 20

func (x *expander) text(s string, depth int) string {
	var out strings.Builder
	for {
		i := strings.IndexByte(s, '$')
		if i < 0 || i == len(s)-1 {
			out.WriteString(s)
			return out.String()
		}
		out.WriteString(s[:i])
		switch s[i+1] {
		case '$':
			out.WriteByte('$')
			s = s[i+2:]
		case '{':
			end := closing(s[i+2:])
			if end < 0 || depth == maxNesting {
				x.problem("${ without its }; write $${ for the characters themselves")
				return out.String()
			}
			out.WriteString(x.reference(s[i+2:i+2+end], depth))
			s = s[i+2+end+1:]
		default:
			out.WriteByte('$')
			s = s[i+1:]
		}
	}
}

// closing returns the index of the } that ends a reference, past nested ones.
func closing(s string) int {
	depth := 0
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '$' && i+1 < len(s) && s[i+1] == '$':
			i++
		case s[i] == '$' && i+1 < len(s) && s[i+1] == '{':
			depth++
			i++
		case s[i] == '}' && depth == 0:
			return i
		case s[i] == '}':
			depth--
		}
	}
	return -1
}

// reference returns what stands for ${ref}.
func (x *expander) reference(ref string, depth int) string {
	ref = strings.TrimPrefix(ref, "env:") // VS Code, Cursor, Windsurf
	name, fallback, hasDefault := strings.Cut(ref, ":-")
	if !consists(name, letters, "_0123456789") || name[0] <= '9' {
		x.problem("%s", foreignReference(name))
		return ""
	}
	value, set := x.env(name)
	switch {
	case hasDefault && value == "":
		return x.text(fallback, depth+1)
	case !set && editorOnly[name]:
		x.problem("${%s} is filled in by an editor only; write the path itself, or ${HOME}", name)
	case !set:
		x.problem("the environment variable %s is not set; ${%s:-} allows that", name, name)
	}
	return value
}

// editorOnly are the references of VS Code and Cursor that look like variables.
var editorOnly = map[string]bool{"workspaceFolder": true, "workspaceFolderBasename": true, "userHome": true, "cwd": true, "file": true}

// foreignReference explains the references of other clients.
func foreignReference(name string) string {
	scheme, rest, _ := strings.Cut(name, ":")
	switch {
	case scheme == "input":
		return fmt.Sprintf("${input:%s} is a question that only VS Code can ask; put the value into an environment variable and write ${NAME}", rest)
	case scheme == "file" || scheme == "command" || scheme == "config":
		return fmt.Sprintf("${%s:…} is not supported; use an environment variable", scheme)
	}
	return "a variable's name has letters, digits and _ only: ${NAME} or ${NAME:-default}; $$ is one $"
}

func (x *expander) problem(format string, args ...any) {
	x.problems = append(x.problems, fmt.Sprintf(format, args...))
}
