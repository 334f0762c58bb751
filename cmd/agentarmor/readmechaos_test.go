package main

import (
	"encoding/json"
	"io"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agentarmor/agentarmor/chaos"
	"github.com/agentarmor/agentarmor/mcpproxy"
)

// tableOf reads a table of the README whose header begins with head: the name
// in the first column of each row, without its quotes, and the second column.
func tableOf(t *testing.T, head string) (names []string, about map[string]string) {
	t.Helper()
	_, rest, found := strings.Cut(readme(t), "\n| "+head+" |")
	if !found {
		t.Fatalf("no table of %ss in the README", head)
	}
	about = map[string]string{}
	for line := range strings.Lines(rest) {
		cells := strings.Split(line, " | ")
		if line == "\n" {
			break
		}
		if name, ok := strings.CutPrefix(cells[0], "| `"); ok {
			name = strings.TrimSuffix(name, "`")
			names, about[name] = append(names, name), strings.TrimSuffix(cells[1], " |\n")
		}
	}
	return names, about
}

// The README tells of every fault what it does, as chaos itself does.
func TestFaultsAreAsInTheReadme(t *testing.T) {
	names, about := tableOf(t, "fault")
	if diff := cmp.Diff(faultNames(), names); diff != "" {
		t.Errorf("faults (-chaos +README):\n%s", diff)
	}
	for _, k := range chaos.Kinds {
		if about[string(k)] != k.About() {
			t.Errorf("%s: %q, in the README %q", k, k.About(), about[string(k)])
		}
	}
}

func TestScenariosAreAsInTheReadme(t *testing.T) {
	_, about := tableOf(t, "scenario")
	inj := chaos.New(chaos.Options{Enabled: true})
	defer inj.Close()
	for _, name := range inj.Scenarios() {
		if about[name] == "" {
			t.Errorf("the README does not tell of the scenario %s", name)
		}
		delete(about, name)
	}
	if len(about) > 0 {
		t.Errorf("the README tells of scenarios that there are none: %v", about)
	}
}

// inReadme decodes the JSON of the README that begins with begin, strictly.
func inReadme(t *testing.T, begin string, into any) {
	t.Helper()
	at := strings.Index(readme(t), "\n"+begin)
	if at < 0 {
		t.Fatalf("no %s in the README", begin)
	}
	d := json.NewDecoder(strings.NewReader(readme(t)[at:]))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		t.Errorf("%s: %v", begin, err)
	}
}

func TestExamplesOfTheReadmeFit(t *testing.T) {
	var fault chaos.Spec
	inReadme(t, `{"target":"mcp/files/edit_file"`, &fault)
	if err := fault.Validate(chaos.DefaultMaxTTL); err != nil {
		t.Error(err)
	}
	var body struct {
		Text, State string
		Alert       mcpproxy.Alert
	}
	inReadme(t, `{"text":"AgentArmor: `, &body)
	if want := "AgentArmor: " + body.Alert.Text; body.Text != want || body.Alert.Rule != "breaker_open" || body.Alert.Since.IsZero() {
		t.Errorf("%+v", body)
	}
}

// The commands of the README that break things do so.
func TestChaosCommandsAreAsInTheReadme(t *testing.T) {
	lines := regexp.MustCompile(`(?m)^agentarmor (chaos .*?)(?: +#.*)?$`).FindAllStringSubmatch(readme(t), -1)
	if len(lines) < 4 {
		t.Fatalf("%d commands", len(lines))
	}
	config := configFile(t, "llm: {chain: [{name: gemini, provider: gemini, model: m, api_key: none}]}", "  files: {command: fakeserver, args: [read_file, edit_file]}\n")
	e := serveWeb(t, config, "--chaos")
	e.awaitTools("files__read_file")
	for _, line := range lines {
		words := strings.Fields(strings.ReplaceAll(line[1], "'", ""))
		if err := run(t.Context(), append(words, "--url", e.url), mapEnv(nil), nil, io.Discard, io.Discard); err != nil {
			t.Errorf("%s: %v", line[0], err)
		}
	}
}
