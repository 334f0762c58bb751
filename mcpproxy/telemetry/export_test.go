package telemetry

import (
	"bytes"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel"
)

// roundTrip is a transport without a network.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func answer(status int, headers ...string) (*http.Response, error) {
	r := &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(""))}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	return r, nil
}

// A busy collector is asked again, when it says or with growing pauses; one that
// refuses is not.
func TestExportTriesAgain(t *testing.T) {
	refused := func() (*http.Response, error) { return nil, errors.New("connection refused") }
	busy := func() (*http.Response, error) { return answer(503) }
	for name, c := range map[string]struct {
		answers []func() (*http.Response, error) // the last one for ever
		posts   int
		least   time.Duration
		most    time.Duration
		err     string
	}{
		"at once":     {[]func() (*http.Response, error){func() (*http.Response, error) { return answer(200) }}, 1, 0, 0, ""},
		"after":       {[]func() (*http.Response, error){func() (*http.Response, error) { return answer(429, "Retry-After", "4") }, func() (*http.Response, error) { return answer(200) }}, 2, 4 * time.Second, 4 * time.Second, ""},
		"pauses":      {[]func() (*http.Response, error){busy, refused, func() (*http.Response, error) { return answer(202) }}, 3, 1500 * time.Millisecond, 4500 * time.Millisecond, ""},
		"bad request": {[]func() (*http.Response, error){func() (*http.Response, error) { return answer(400) }}, 1, 0, 0, "traces cannot be sent: the collector answers 400"},
		"redirect":    {[]func() (*http.Response, error){func() (*http.Response, error) { return answer(307, "Location", "http://elsewhere/") }}, 1, 0, 0, "traces cannot be sent: the collector answers 307"},
		"too late":    {[]func() (*http.Response, error){func() (*http.Response, error) { return answer(503, "Retry-After", "60") }}, 1, 10 * time.Second, 10 * time.Second, "traces cannot be sent: the collector answers 503"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, err := env(lookup("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector")).destination()
				if err != nil {
					t.Fatal(err)
				}
				e := newExporter(d)
				defer e.stop()
				posts := 0
				e.client.Transport = roundTrip(func(*http.Request) (*http.Response, error) {
					posts++
					return c.answers[min(posts, len(c.answers))-1]()
				})
				began := time.Now()
				err = e.ExportSpans(t.Context(), nil)
				if took := time.Since(began); posts != c.posts || took < c.least || took > c.most {
					t.Errorf("%d posts in %v", posts, took)
				}
				if text := errorText(err); text != c.err {
					t.Errorf("error %q, want %q", text, c.err)
				}
			})
		})
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// At the end nobody waits for a collector that is not there.
func TestShutdownTriesOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr, err := NewTracer(t.Context(), "1", lookup("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector"), nil)
		if err != nil {
			t.Fatal(err)
		}
		posts := 0
		tr.out.client.Transport = roundTrip(func(*http.Request) (*http.Response, error) {
			posts++
			return answer(503)
		})
		tr.Start("", "", "tools/list", "a", "").End("ok", "yes", "")
		began := time.Now()
		_ = tr.Shutdown(t.Context())
		if took := time.Since(began); posts != 1 || took > 0 {
			t.Errorf("%d posts in %v", posts, took)
		}
	})
}

func TestWhatTheCollectorGets(t *testing.T) {
	c := newCollector(t)
	tr := tracer(t, c.env("OTEL_EXPORTER_OTLP_HEADERS", "x-key=a%20b", "OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"), nil)
	tr.Start("", "", "tools/list", "a", "").End("ok", "yes", "")
	flush(t, tr)
	if len(c.requests) != 1 || len(c.spans()) != 1 {
		t.Fatalf("%d requests, spans %v", len(c.requests), c.spans())
	}
	r := c.requests[0]
	got := []string{r.Method, r.URL.Path, r.Header.Get("Content-Type"), r.Header.Get("Content-Encoding"), r.Header.Get("X-Key")}
	if d := cmp.Diff([]string{"POST", "/v1/traces", "application/x-protobuf", "gzip", "a b"}, got); d != "" {
		t.Error(d)
	}
}

func TestCertificateOfTheCollector(t *testing.T) {
	c := newCollector(t)
	secure := httptest.NewTLSServer(http.HandlerFunc(c.serve))
	defer secure.Close()
	file := filepath.Join(t.TempDir(), "ca.pem")
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw})
	if err := os.WriteFile(file, ca, 0o600); err != nil {
		t.Fatal(err)
	}
	tr := tracer(t, lookup("OTEL_EXPORTER_OTLP_ENDPOINT", secure.URL, "OTEL_EXPORTER_OTLP_CERTIFICATE", file), nil)
	tr.Start("", "", "tools/list", "a", "").End("ok", "yes", "")
	flush(t, tr)
	if len(c.spans()) != 1 {
		t.Errorf("spans %v", c.spans())
	}
}

// The collector's failures are logged, and with them no secret that the
// environment holds for it, not even when a collector repeats one.
func TestSecretsStayInTheEnvironment(t *testing.T) {
	var logged bytes.Buffer
	log := slog.New(slog.NewTextHandler(&logged, nil))
	c := newCollector(t)
	address := strings.Replace(c.server.URL, "://", "://user:pa55word@", 1) + "/?key=qu3ry-key"
	c.answer = func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "no access for header-t0ken", http.StatusUnauthorized)
	}
	variables := lookup("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", address, "OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20header-t0ken,x-key=0ther-key")
	tr := tracer(t, variables, log)
	tr.Start("", "", "tools/list", "a", "").End("ok", "yes", "")
	_ = tr.Shutdown(t.Context())
	c.server.Close()
	tr = tracer(t, variables, log)
	tr.Start("", "", "tools/list", "a", "").End("ok", "yes", "")
	_ = tr.Shutdown(t.Context())
	otel.Handle(errors.New("header-t0ken, Bearer header-t0ken, 0ther-key, pa55word, user:pa55word@ and key=qu3ry-key"))

	text := logged.String()
	for _, want := range []string{"the collector answers 401", "connection refused", "***, ***, ***"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	for _, secret := range []string{"t0ken", "0ther", "pa55word", "qu3ry", "Bearer"} {
		if strings.Contains(text, secret) {
			t.Errorf("%s in\n%s", secret, text)
		}
	}
}

func TestSameErrorIsLoggedOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var logged bytes.Buffer
		routeErrors(slog.New(slog.NewTextHandler(&logged, nil)), strings.NewReplacer())
		for range 30 {
			otel.Handle(errors.New("no collector"))
			time.Sleep(5 * time.Second)
		}
		if n := strings.Count(logged.String(), "no collector"); n != 3 {
			t.Errorf("%d lines in 2½ minutes:\n%s", n, logged.String())
		}
	})
}
