package telemetry

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	sdk "go.opentelemetry.io/otel/sdk/trace"

	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// exporter sends batches of spans by OTLP over HTTP, version 1.
type exporter struct {
	to      destination
	client  *http.Client
	sending context.Context // until stop
	stop    context.CancelFunc
	waiting context.Context // until hurry, after which nothing is tried again
	hurry   context.CancelFunc
}

var _ sdk.SpanExporter = (*exporter)(nil)

func newExporter(to destination) *exporter {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = to.tls
	e := &exporter{to: to, client: &http.Client{
		Transport: transport,
		// The headers are meant for the collector alone.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	e.sending, e.stop = context.WithCancel(context.Background())
	e.waiting, e.hurry = context.WithCancel(e.sending)
	return e
}

// Shutdown implements [sdk.SpanExporter].
func (e *exporter) Shutdown(context.Context) error {
	e.client.CloseIdleConnections()
	return nil
}

// ExportSpans implements [sdk.SpanExporter]: it tries again what the collector
// was too busy for, until the timeout.
func (e *exporter) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	defer wire.OnPanic() // the goroutine is the SDK's
	ctx, cancel := context.WithTimeout(ctx, e.to.timeout)
	defer cancel()
	defer context.AfterFunc(e.sending, cancel)()
	body, err := e.body(spans)
	if err != nil {
		return err
	}
	for wait := time.Second; ; wait *= 2 {
		again, after, err := e.post(ctx, body)
		if !again {
			return err
		}
		// Jitter, so that those who failed together do not come back together.
		if after == 0 {
			after = wait/2 + rand.N(wait)
		}
		select {
		case <-time.After(after):
		case <-e.waiting.Done():
			return err
		case <-ctx.Done():
			return err
		}
	}
}

func (e *exporter) body(spans []sdk.ReadOnlySpan) ([]byte, error) {
	if !e.to.gzip {
		return appendTraces(nil, spans), nil
	}
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := w.Write(appendTraces(nil, spans))
	err = errors.Join(err, w.Close())
	return b.Bytes(), err
}

// post sends one request. again says whether it may be repeated, and after how
// long when the collector said so.
func (e *exporter) post(ctx context.Context, body []byte) (again bool, after time.Duration, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.to.url, bytes.NewReader(body))
	if err != nil {
		return false, 0, err
	}
	req.Header = e.to.headers.Clone()
	req.Header.Set("Content-Type", "application/x-protobuf")
	if e.to.gzip {
		req.Header.Set("Content-Encoding", "gzip")
	}
	res, err := e.client.Do(req)
	if err != nil {
		if u, ok := errors.AsType[*url.Error](err); ok {
			err = u.Err // without the address
		}
		return ctx.Err() == nil, 0, fmt.Errorf("traces cannot be sent: %w", err)
	}
	defer res.Body.Close()
	_, _ = io.CopyN(io.Discard, res.Body, 64<<10) // so that the connection is kept
	switch res.StatusCode {
	case http.StatusOK, http.StatusAccepted, http.StatusNoContent:
		return false, 0, nil
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		again = true
	}
	if seconds, err := strconv.Atoi(res.Header.Get("Retry-After")); err == nil && seconds > 0 {
		after = time.Duration(min(seconds, 3600)) * time.Second
	}
	return again, after, fmt.Errorf("traces cannot be sent: the collector answers %d", res.StatusCode)
}

// masking replaces what the environment gives for the collector's eyes only:
// values of headers, and password and query of its address.
func masking(address, headers string, list [][2]string) *strings.Replacer {
	var replace []string
	hide := func(values ...string) {
		for _, v := range values {
			if len(v) >= 4 {
				replace = append(replace, v, "***")
			}
		}
	}
	hide(headers)
	for _, h := range list {
		hide(h[1])
		hide(strings.Fields(h[1])...)
	}
	if u, err := url.Parse(address); err == nil {
		password, _ := u.User.Password()
		hide(u.User.String(), password, u.RawQuery)
	}
	return strings.NewReplacer(replace...)
}

// repeatAfter is how long the same error is not logged again.
const repeatAfter = time.Minute

// routeErrors sends the errors of OpenTelemetry, which has one place for them in
// a process, to log, masked, each text once a minute.
func routeErrors(log *slog.Logger, mask *strings.Replacer) {
	var mu sync.Mutex
	var last string
	var at time.Time
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		text := mask.Replace(err.Error())
		mu.Lock()
		repeated := text == last && time.Since(at) < repeatAfter
		if !repeated {
			last, at = text, time.Now()
		}
		mu.Unlock()
		if !repeated && log != nil {
			log.Warn("OpenTelemetry reports a failure", "reason", text)
		}
	}))
}
