package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	neturl "net/url"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/mark3labs/mcp-go/client"
	"github.com/mark3labs/mcp-go/client/transport"
	"github.com/mark3labs/mcp-go/mcp"
	"github.com/spf13/cobra"

	"github.com/agentarmor/agentarmor/mcpproxy/builtin"
)

// statusFlags are the flags of status.
type statusFlags struct {
	config, url, tokenEnv string
	json                  bool
}

const statusHelp = `Ask a running endpoint (agentarmor serve --transport http) how it and its
upstreams are doing. Address and token come from the config file unless --url
and --token-env name others.

An endpoint on stdio belongs to its client alone: ask it there, with the tool
armor_status or the resource agentarmor://status.`

// statusCommand prints the status of a running endpoint.
func (a *app) statusCommand() *cobra.Command {
	var f statusFlags
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show how a running endpoint and its upstreams are doing",
		Long:  statusHelp,
		Args:  noArguments,
		RunE:  func(cmd *cobra.Command, _ []string) error { return a.status(cmd.Context(), f) },
	}
	fs := cmd.Flags()
	fs.StringVar(&f.config, "config", "", "config `file`, for the address and the token")
	fs.StringVar(&f.url, "url", "", "`URL` of the endpoint (default http://<listen>/mcp)")
	fs.StringVar(&f.tokenEnv, "token-env", "", "environment `variable` that holds the token")
	fs.BoolVar(&f.json, "json", false, "print the status document as JSON")
	return cmd
}

func (a *app) status(ctx context.Context, f statusFlags) error {
	url, token, err := a.endpoint(f)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	doc, err := readStatus(ctx, url, token)
	if err != nil {
		return explain(url, err)
	}
	if f.json {
		var out bytes.Buffer
		if json.Indent(&out, doc, "", "  ") != nil {
			return fmt.Errorf("the status of %s is not JSON", url)
		}
		out.WriteByte('\n')
		_, err = out.WriteTo(a.stdout)
		return err
	}
	return printStatus(a.stdout, doc)
}

// endpoint returns the URL and the token to use. The config file is read only
// for what the flags leave open.
func (a *app) endpoint(f statusFlags) (url, token string, err error) {
	url = f.url
	if u, err := neturl.Parse(url); err == nil && u.Host != "" && strings.Trim(u.Path, "/") == "" {
		url = strings.TrimRight(url, "/") + "/mcp"
	}
	if f.tokenEnv != "" {
		if token, _ = a.env(f.tokenEnv); token == "" {
			return "", "", usage("--token-env: the environment variable %s is not set", f.tokenEnv)
		}
	}
	if url != "" && (token != "" || f.config == "") {
		return url, token, nil
	}
	set, err := loadSettings(f.config, a.env)
	if err != nil {
		return "", "", err
	}
	if token == "" && len(set.tokens) > 0 {
		token = set.tokens[0]
	}
	return cmp.Or(url, "http://"+dialable(set.listen)+"/mcp"), token, nil
}

// dialable turns an address that means all interfaces into one of them.
func dialable(listen string) string {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return listen
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port)
}

// connect opens a session with a running endpoint; the caller closes it.
func connect(ctx context.Context, url, token, name string) (*client.Client, error) {
	var opts []transport.StreamableHTTPCOption
	if token != "" {
		opts = append(opts, transport.WithHTTPHeaders(map[string]string{"Authorization": "Bearer " + token}))
	}
	c, err := client.NewStreamableHttpClient(url, opts...)
	if err != nil {
		return nil, err
	}
	if err := c.Start(ctx); err != nil {
		return nil, err
	}
	hello := mcp.InitializeRequest{}
	hello.Params.ProtocolVersion = mcp.LATEST_PROTOCOL_VERSION
	hello.Params.ClientInfo = mcp.Implementation{Name: name, Version: version()}
	if _, err := c.Initialize(ctx, hello); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// readStatus fetches the status document.
func readStatus(ctx context.Context, url, token string) ([]byte, error) {
	c, err := connect(ctx, url, token, "agentarmor-status")
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return statusResource(ctx, c)
}

// statusResource reads the status document over a session.
func statusResource(ctx context.Context, c *client.Client) ([]byte, error) {
	req := mcp.ReadResourceRequest{}
	req.Params.URI = builtin.StatusURI
	res, err := c.ReadResource(ctx, req)
	if err != nil {
		return nil, err
	}
	for _, content := range res.Contents {
		if text, ok := content.(mcp.TextResourceContents); ok {
			return []byte(text.Text), nil
		}
	}
	return nil, errors.New("no status in the answer: not an AgentArmor endpoint?")
}

// explain says what to do about an error of readStatus.
func explain(url string, err error) error {
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("nothing is listening at %s; start it with: agentarmor serve --transport http", url)
	case errors.Is(err, transport.ErrUnauthorized), errors.Is(err, transport.ErrAuthorizationRequired):
		return fmt.Errorf("%s wants another token: name the variable that holds it with --token-env, or set auth.tokens in the config", url)
	}
	return fmt.Errorf("no status from %s: %w", url, err)
}

// statusDocument is what printStatus shows of agentarmor://status.
type statusDocument struct {
	Version   string    `json:"version"`
	StartedAt time.Time `json:"started_at"`
	Chaos     struct {
		Enabled bool `json:"enabled"`
		Active  int  `json:"active"`
	} `json:"chaos"`
	Summary struct {
		Text string `json:"text"`
	} `json:"summary"`
	Upstreams map[string]upstreamStatus `json:"upstreams"`
}

type upstreamStatus struct {
	State       string            `json:"state"`
	Reason      string            `json:"reason"`
	NextAttempt *time.Time        `json:"next_attempt"`
	Transport   string            `json:"transport"`
	Protocol    string            `json:"protocol"`
	Pid         int               `json:"pid"`
	Restarts    int               `json:"restarts"`
	LastError   string            `json:"last_error"`
	Stderr      []string          `json:"stderr"`
	Tools       int               `json:"tools"`
	Prompts     int               `json:"prompts"`
	Resources   int               `json:"resources"`
	Quarantined map[string]string `json:"quarantined"`
}

// printStatus writes the document as a table, and below it what is wrong.
func printStatus(w io.Writer, raw []byte) error {
	var doc statusDocument
	if err := json.Unmarshal(raw, &doc); err != nil {
		return errors.New("the status has an unknown shape: is the endpoint of another version?")
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(tw, "AgentArmor %s, up since %s\n", doc.Version, doc.StartedAt.Local().Format(time.DateTime))
	if doc.Summary.Text != "" {
		fmt.Fprintln(tw, doc.Summary.Text)
	}
	if doc.Chaos.Enabled {
		fmt.Fprintf(tw, "chaos is on: %s active\n", count(doc.Chaos.Active, "fault"))
	}
	names := slices.Sorted(maps.Keys(doc.Upstreams))
	if len(names) > 0 {
		fmt.Fprintln(tw, "\nUPSTREAM\tSTATE\tTRANSPORT\tPROTOCOL\tTOOLS\tPROMPTS\tRESOURCES\tRESTARTS\tPID")
	}
	for _, name := range names {
		u := doc.Upstreams[name]
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%d\t%d\t%d\t%d\t%s\n", name, u.State, u.Transport,
			cmp.Or(u.Protocol, "-"), u.Tools, u.Prompts, u.Resources, u.Restarts, pid(u.Pid))
	}
	for _, name := range names {
		printTrouble(tw, name, doc.Upstreams[name])
	}
	return tw.Flush()
}

func pid(n int) string {
	if n == 0 {
		return "-"
	}
	return fmt.Sprint(n)
}

func printTrouble(w io.Writer, name string, u upstreamStatus) {
	var lines []string
	if u.State != "ready" && u.State != "disabled" {
		if u.Reason != "" {
			lines = append(lines, u.Reason)
		}
		if u.NextAttempt != nil {
			lines = append(lines, "next attempt "+u.NextAttempt.Local().Format(time.TimeOnly))
		}
		if u.LastError != "" && u.LastError != u.Reason {
			lines = append(lines, "last error: "+u.LastError)
		}
		for _, s := range u.Stderr {
			lines = append(lines, "stderr: "+s)
		}
	}
	for _, what := range slices.Sorted(maps.Keys(u.Quarantined)) {
		lines = append(lines, "quarantined: "+what+": "+u.Quarantined[what])
	}
	if lines != nil {
		fmt.Fprintf(w, "\n%s:\n  %s\n", name, strings.Join(lines, "\n  "))
	}
}
