package main

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/mark3labs/mcp-go/client"
	"github.com/mark3labs/mcp-go/client/transport"
	"github.com/mark3labs/mcp-go/mcp"

	"github.com/agentarmor/agentarmor/mcpproxy/builtin"
)

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

// statusReader reads the status of one endpoint, again and again over one session.
type statusReader struct {
	url, token string
	client     *client.Client // nil: not connected
	unfollow   func()         // nil: not followed
}

// readTimeout bounds one reading.
const readTimeout = 10 * time.Second

// read returns the status document. If changed is not nil it gets a value, as
// far as it has room, whenever the endpoint says that there is another one; ctx
// must last as long as that.
func (r *statusReader) read(ctx context.Context, changed chan<- struct{}) ([]byte, error) {
	once, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	if r.client == nil {
		c, err := connect(once, r.url, r.token, "agentarmor-status")
		if err != nil {
			return nil, explain(r.url, err)
		}
		r.client = c
		if changed != nil {
			r.follow(ctx, changed)
		}
	}
	doc, err := statusResource(once, r.client)
	if err != nil {
		r.close()
		return nil, explain(r.url, err)
	}
	return doc, nil
}

// follow subscribes to the status. An endpoint that does not offer that is read all the same.
func (r *statusReader) follow(ctx context.Context, changed chan<- struct{}) {
	r.client.OnNotification(func(n mcp.JSONRPCNotification) {
		if n.Method != string(mcp.MethodNotificationResourceUpdated) {
			return
		}
		select {
		case changed <- struct{}{}:
		default:
		}
	})
	stop, err := r.client.ListenAsync(ctx, mcp.SubscriptionFilter{ResourceSubscriptions: []string{builtin.StatusURI}}, nil)
	if err == nil {
		r.unfollow = stop
	}
}

// close ends the session; the next read opens another one.
func (r *statusReader) close() {
	if r.unfollow != nil {
		r.unfollow()
	}
	if r.client != nil {
		r.client.Close()
	}
	r.client, r.unfollow = nil, nil
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

// explain says what to do about an error of a reading.
func explain(url string, err error) error {
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("nothing is listening at %s; start it with: agentarmor serve --transport http", url)
	case errors.Is(err, transport.ErrUnauthorized), errors.Is(err, transport.ErrAuthorizationRequired):
		return fmt.Errorf("%s wants another token: name the variable that holds it with --token-env, or set auth.tokens in the config", url)
	}
	return fmt.Errorf("no status from %s: %w", url, err)
}
