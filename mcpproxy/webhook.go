package mcpproxy

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// webhook sends alerts to an address, one after the other, each until it is
// taken or was tried often enough. Who raises an alert never waits for it: what
// finds no room is dropped, and the log says so. The address is a secret:
// who knows it can post there.
type webhook struct {
	url    string
	log    *slog.Logger
	client *http.Client
	queue  chan []byte
}

const (
	webhookQueue    = 64 // alerts that wait
	webhookAttempts = 5
	webhookTimeout  = 10 * time.Second // of one attempt
	webhookBase     = time.Second      // before the second attempt; then 4, 16, 60 s
	webhookMax      = time.Minute
)

// newWebhook returns nil for no address.
func newWebhook(url string, log *slog.Logger) *webhook {
	if url == "" {
		return nil
	}
	return &webhook{url: url, log: log, queue: make(chan []byte, webhookQueue), client: &http.Client{
		Transport: http.DefaultTransport.(*http.Transport).Clone(), // whose idle connections are nobody else's
		Timeout:   webhookTimeout,
		// Somewhere else is not where the alerts are meant to go.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// webhookBody is an alert as it is sent. Slack and those that are like it show
// the text and ignore the rest.
type webhookBody struct {
	Text  string `json:"text"`
	State string `json:"state"` // raised or resolved
	Alert Alert  `json:"alert"`
}

// slackText keeps what a server says from being read as a link or a mention
// (api.slack.com/reference/surfaces/formatting, "Escaping text"), or as a line of ours.
var slackText = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "\n", " ", "\r", " ")

// send takes an alert for delivery. It does not block.
func (w *webhook) send(one Alert) {
	text := "AgentArmor: "
	if one.Resolved != nil {
		text += "resolved: "
	}
	if one.Injected != "" {
		text += "injected by chaos: "
	}
	body := webhookBody{text + slackText.Replace(one.Text), one.state(), one}
	raw, err := json.Marshal(body)
	if err != nil {
		return // strings and times always encode
	}
	select {
	case w.queue <- raw:
	default:
		w.log.Warn("an alert was not sent to the webhook", "rule", one.Rule, "reason", "too many wait")
	}
}

// run delivers until ctx ends.
func (w *webhook) run(ctx context.Context) {
	defer w.client.CloseIdleConnections()
	for {
		select {
		case <-ctx.Done():
			if n := len(w.queue); n > 0 {
				w.log.Warn("alerts were not sent to the webhook", "alerts", n, "reason", errEnds)
			}
			return
		case body := <-w.queue:
			if err := w.deliver(ctx, body); err != nil {
				w.log.Warn("an alert was not taken by the webhook", "reason", err)
			}
		}
	}
}

var errEnds = errors.New("the endpoint ends")

// deliver tries until the alert is taken, refused for good, or was tried often enough.
func (w *webhook) deliver(ctx context.Context, body []byte) error {
	pause := webhookBase
	for attempt := 1; ; attempt++ {
		wait, err := w.post(ctx, body)
		if err == nil || wait < 0 || attempt == webhookAttempts {
			return err
		}
		wait = min(max(wait, pause+rand.N(pause/4)), webhookMax)
		pause = min(4*pause, webhookMax)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return errEnds
		}
	}
}

// post makes one attempt. After an error wait is how long to wait at least
// before another one; negative: there is no use in one.
func (w *webhook) post(ctx context.Context, body []byte) (wait time.Duration, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url, bytes.NewReader(body))
	if err != nil {
		return -1, errors.New("not a URL")
	}
	r.Header.Set("Content-Type", "application/json")
	resp, err := w.client.Do(r)
	if err != nil {
		return 0, unanswered(err)
	}
	defer resp.Body.Close()
	_, _ = io.CopyN(io.Discard, resp.Body, 64<<10) // so that the connection can be used again
	switch code := resp.StatusCode; {
	case code/100 == 2:
		return 0, nil
	case code/100 == 5, code == http.StatusTooManyRequests, code == http.StatusRequestTimeout:
		seconds, _ := strconv.Atoi(resp.Header.Get("Retry-After"))
		return time.Duration(max(0, min(seconds, int(webhookMax/time.Second)))) * time.Second, fmt.Errorf("HTTP status %d", code)
	default:
		return -1, fmt.Errorf("HTTP status %d", code)
	}
}

// unanswered says why there is no answer. Neither the address is in it nor
// anything that the receiver has said, which may be the address.
func unanswered(err error) error {
	if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
		return fmt.Errorf("no answer within %v", webhookTimeout)
	}
	if e, ok := errors.AsType[syscall.Errno](err); ok {
		return e
	}
	if _, ok := errors.AsType[*net.DNSError](err); ok {
		return errors.New("no such host")
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return errors.New("its certificate is not valid for it, or not trusted")
	}
	return errors.New("no HTTP answer")
}
