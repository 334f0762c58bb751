package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	neturl "net/url"
	"strings"

	"github.com/spf13/cobra"
)

// statusFlags are the flags of status.
type statusFlags struct {
	config, url, tokenEnv string
	json, watch           bool
}

const statusHelp = `Ask a running endpoint (agentarmor serve --transport http) how it and its
upstreams are doing. Address and token come from the config file unless --url
and --token-env name others.

Calls, errors and p95 are those of the last five minutes. --watch shows the
status anew every two seconds, and at once when something happens, until ctrl-C;
into a pipe or a file it writes only what has changed. With --json each of these is one line.

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
	fs.BoolVar(&f.watch, "watch", false, "keep showing it, until ctrl-C")
	return cmd
}

func (a *app) status(ctx context.Context, f statusFlags) error {
	url, token, err := a.endpoint(f)
	if err != nil {
		return err
	}
	r := &statusReader{url: url, token: token}
	defer r.close()
	if f.watch {
		w := newStatusWatch(a.stdout, a.stderr, f.json)
		return w.run(ctx, func() ([]byte, error) { return r.read(ctx, w.changed) })
	}
	doc, err := r.read(ctx, nil)
	if err != nil {
		return err
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
