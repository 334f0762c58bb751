package telemetry

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel"
)

// However a collector fails, the end waits for it no longer than the caller does.
func TestShutdownEndsWithItsContext(t *testing.T) {
	for name, answer := range map[string]http.HandlerFunc{
		"hangs": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"busy":  func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) },
	} {
		t.Run(name, func(t *testing.T) {
			c := newCollector(t)
			c.answer = answer
			tr := c.tracer("OTEL_EXPORTER_OTLP_TIMEOUT", "600000", "OTEL_BSP_EXPORT_TIMEOUT", "600000")
			tr.Start("", "", "tools/list", "a", "").End("ok", "yes", "")
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			if err := tr.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("error %v", err)
			}
		})
	}
}

// A collector that is not there is not waited for: its spans are lost at once.
func TestShutdownWithoutACollector(t *testing.T) {
	c := newCollector(t)
	tr := c.tracer()
	c.server.Close()
	tr.Start("", "", "tools/list", "a", "").End("ok", "yes", "")
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second) // less than the pause before a second attempt
	defer cancel()
	if err := tr.Shutdown(ctx); err != nil {
		t.Error(err)
	}
}

// The collector's failures are logged, and with them no secret that the
// environment holds for it, not even when a collector repeats one.
func TestSecretsStayInTheEnvironment(t *testing.T) {
	var logged bytes.Buffer
	log := slog.New(slog.NewTextHandler(&logged, nil))
	c := newCollector(t)
	c.answer = func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "no access for header-t0ken "+strings.Repeat("x", 2*maxError), http.StatusUnauthorized)
	}
	environ(t, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", strings.Replace(c.server.URL, "://", "://user:pa55word@", 1)+"/?key=qu3ry-key",
		"OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20header-t0ken,x-key=0ther-key,x-id=0ther", "OTEL_EXPORTER_OTLP_TIMEOUT", "soon")
	tr := tracer(t, log)
	tr.Start("", "", "tools/list", "a", "").End("ok", "yes", "")
	_ = tr.Shutdown(t.Context())
	c.server.Close()
	tr = tracer(t, log)
	tr.Start("", "", "tools/list", "a", "").End("ok", "yes", "")
	_ = tr.Shutdown(t.Context())
	otel.Handle(errors.New("header-t0ken, Bearer header-t0ken, 0ther-key, pa55word, user:pa55word@ and key=qu3ry-key"))

	text := logged.String()
	for _, want := range []string{"401 Unauthorized (body: no access for ***", "traces export: Post", `***, ***, ***, ***, ***@ and ***`, "parse duration"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	for _, secret := range []string{"t0ken", "0ther", "-key", "pa55word", "qu3ry", "Bearer"} {
		if strings.Contains(text, secret) {
			t.Errorf("%s in\n%s", secret, text)
		}
	}
	for line := range strings.Lines(text) {
		if len(line) > 2*maxError {
			t.Errorf("a line of %d bytes", len(line))
		}
	}
}

func TestFailuresAreLoggedSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var logged bytes.Buffer
		logFailures(slog.New(slog.NewTextHandler(&logged, nil)), nil)
		for range 120 {
			otel.Handle(errors.New("no collector"))
			time.Sleep(5 * time.Second)
		}
		if n := strings.Count(logged.String(), "no collector"); n < 5+9 || n > 5+10 {
			t.Errorf("%d lines in 10 minutes:\n%s", n, logged.String())
		}
	})
}
