package main

import (
	"bytes"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const modulePath = "github.com/agentarmor/agentarmor"

// imports is who may import what, beside the standard library; a path ending in
// "/" stands for everything below. Tests may import more.
var imports = map[string][]string{
	"chaos":                  nil,
	"health":                 {"github.com/sony/gobreaker/v2"},
	"mcpproxy/wire":          {"golang.org/x/sys/unix"},
	"mcpproxy/event":         nil,
	"mcpproxy/builtin":       {"github.com/mark3labs/mcp-go/", modulePath + "/llm", modulePath + "/chaos"},
	"mcpproxy/telemetry":     {"github.com/prometheus/client_golang/", "go.opentelemetry.io/otel", "go.opentelemetry.io/otel/", "github.com/go-logr/logr/funcr", "golang.org/x/time/rate"},
	"mcpproxy":               {modulePath + "/health", modulePath + "/llm", modulePath + "/chaos", modulePath + "/mcpproxy/", "github.com/mark3labs/mcp-go/server", "github.com/yosida95/uritemplate/v3", "golang.org/x/time/rate"},
	"llm":                    {modulePath + "/health", "github.com/google/generative-ai-go/genai", "google.golang.org/api/", "github.com/sashabaranov/go-openai", "github.com/santhosh-tekuri/jsonschema/v6"},
	"fixtures/badserver":     nil,
	"fixtures/cmd/badserver": {modulePath + "/fixtures/badserver"},
	"fixtures/fakellm":       nil,
	"fixtures/cmd/fakellm":   {modulePath + "/fixtures/fakellm"},
	"cmd/agentarmor": {modulePath + "/mcpproxy", modulePath + "/mcpproxy/wire", modulePath + "/mcpproxy/builtin", modulePath + "/mcpproxy/telemetry", modulePath + "/health", modulePath + "/llm", modulePath + "/chaos", modulePath + "/fixtures/badserver", modulePath + "/fixtures/fakellm", // the demo's
		"github.com/mark3labs/mcp-go/", "github.com/spf13/cobra", "github.com/goccy/go-yaml", "github.com/goccy/go-yaml/",
		"github.com/fsnotify/fsnotify", "github.com/lmittmann/tint"},
}

// goFiles returns the Go files of the repository that are no tests, by folder.
func goFiles(t *testing.T) map[string][]string {
	t.Helper()
	files := map[string][]string{}
	err := fs.WalkDir(os.DirFS("../.."), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != "." && strings.HasPrefix(d.Name(), "."), d.IsDir() && d.Name() == "testdata":
			return fs.SkipDir
		case strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go"):
			files[path.Dir(name)] = append(files[path.Dir(name)], filepath.Join("../..", name))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func TestImportsPointOneWay(t *testing.T) {
	for dir, files := range goFiles(t) {
		allowed, known := imports[dir]
		if !known {
			t.Errorf("package %s is not in the import table", dir)
			continue
		}
		for _, file := range files {
			f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
			if err != nil {
				t.Fatal(err)
			}
			for _, spec := range f.Imports {
				imported := strings.Trim(spec.Path.Value, `"`)
				if first, _, _ := strings.Cut(imported, "/"); !strings.Contains(first, ".") {
					continue
				}
				if !slices.ContainsFunc(allowed, func(a string) bool {
					return a == imported || strings.HasSuffix(a, "/") && strings.HasPrefix(imported, a)
				}) {
					t.Errorf("%s must not import %s", file, imported)
				}
			}
		}
	}
}

func TestEveryPackageHasAComment(t *testing.T) {
	for dir, files := range goFiles(t) {
		documented := false
		for _, file := range files {
			f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.PackageClauseOnly|parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			documented = documented || f.Doc != nil
		}
		if !documented {
			t.Errorf("package %s has no comment", dir)
		}
	}
}

func TestTopLevelIsFixed(t *testing.T) {
	want := []string{"README.md", "chaos", "cmd", "fixtures", "go.mod", "go.sum", "health", "llm", "mcpproxy"}
	entries, err := os.ReadDir("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if ext := path.Ext(e.Name()); ext == ".test" || ext == ".prof" {
			continue // git ignores them
		}
		if !strings.HasPrefix(e.Name(), ".") && !slices.Contains(want, e.Name()) {
			t.Errorf("%s does not belong at the top level", e.Name())
		}
	}
}

func readme(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// The configurations of the README are pasted by people: each of them loads.
func TestReadmeConfigurationsLoad(t *testing.T) {
	blocks := regexp.MustCompile("(?ms)^( *)```(json|yaml)\n(.*?)^ *```").FindAllStringSubmatch(readme(t), -1)
	if len(blocks) < 5 {
		t.Fatalf("found %d configurations in the README", len(blocks))
	}
	env := func(string) (string, bool) { return "x", true }
	for _, b := range blocks {
		file := filepath.Join(t.TempDir(), "config."+b[2])
		text := regexp.MustCompile("(?m)^"+b[1]).ReplaceAllString(b[3], "")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		set, err := loadSettings(file, env)
		if err != nil {
			t.Errorf("%v in\n%s", err, text)
		} else if len(set.proxy.Upstreams) == 0 && reflect.DeepEqual(set.llm, llmSettings{}) && set.chaos.Scenarios == nil && set.proxy.Alerts.Webhook == "" {
			t.Errorf("no upstreams, models, scenarios or webhook in\n%s", text)
		}
	}
}

// story is the demo's output in the README.
var story = regexp.MustCompile("(?s)AgentArmor at .*?\n```\n")

// number is what differs between two runs of the demo: ports, processes, times, shares.
var number = regexp.MustCompile(`[+-]?\d[\d.]*(ms|µs|s)?`)

// shape is what the demo prints without numbers and the widths of columns.
func shape(output string) (lines []string) {
	for line := range strings.Lines(output) {
		lines = append(lines, strings.Join(strings.Fields(number.ReplaceAllString(line, "N")), " "))
	}
	return lines
}

// The README shows what the demo prints, every step of it holds, and a pipe
// gets no escape codes.
func TestDemoIsAsInTheReadme(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "agentarmor", "demo").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if *update {
		write(t, "../../README.md", story.ReplaceAllLiteralString(readme(t), string(out)+"```\n"))
	}
	shown := strings.TrimSuffix(story.FindString(readme(t)), "```\n")
	if diff := cmp.Diff(shape(shown), shape(string(out))); diff != "" {
		t.Errorf("-README +demo (go test -run TestDemoIsAsInTheReadme -update writes it)\n%s", diff)
	}
	if bytes.ContainsAny(out, "\x1b\r") {
		t.Errorf("%q", out)
	}
}

// rows are the names of the rows of a crash test.
func rows(output string) (names []string) {
	_, table, _ := strings.Cut(output, " meet a fault\n\n")
	for line := range strings.Lines(table) {
		name := strings.TrimSpace(regexp.MustCompile(`  .*`).ReplaceAllString(strings.TrimLeft(line, " "), ""))
		if name == "" || strings.HasPrefix(name, "`") {
			break
		}
		names = append(names, name)
	}
	return names
}

// The README shows what the crash test prints.
func TestCrashtestIsAsInTheReadme(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "agentarmor", "crashtest", "--runs", "4").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	_, chapter, _ := strings.Cut(readme(t), "\n## Break it on purpose\n")
	if got, want := rows(string(out)), rows(chapter); !slices.Equal(got, want) || len(got) < 12 {
		t.Errorf("the rows are\n%q\nin the README\n%q", got, want)
	}
}
