package telemetry

import (
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestEnvironmentDecides(t *testing.T) {
	const all, traces = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
	const on, off = "on", ""
	const form = "not of the form key=value,key=value with values in percent encoding"
	for _, c := range []struct {
		want string // on, off, or what the error says
		env  []string
	}{
		{off, nil},
		{off, []string{all, " "}},
		{off, []string{"OTEL_TRACES_EXPORTER", "otlp"}},
		{off, []string{"OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"}},
		{on, []string{all, "http://127.0.0.1:1"}},
		{on, []string{traces, "https://127.0.0.1:1/x"}},
		{on, []string{all, "http://127.0.0.1:1", "OTEL_TRACES_EXPORTER", "otlp", "OTEL_SDK_DISABLED", "false"}},
		{on, []string{all, "http://127.0.0.1:1", "OTEL_TRACES_EXPORTER", "", "OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"}},
		{on, []string{all, "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf"}},
		{off, []string{all, "http://127.0.0.1:1", "OTEL_SDK_DISABLED", "TRUE"}},
		{off, []string{all, "http://127.0.0.1:1", "OTEL_TRACES_EXPORTER", "none"}},
		{off, []string{all, "http://127.0.0.1:1", "OTEL_TRACES_EXPORTER", "zipkin", "OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"}},
		{`OTEL_EXPORTER_OTLP_PROTOCOL is "grpc": only http/protobuf can be sent`, []string{all, "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"}},
		{`OTEL_EXPORTER_OTLP_TRACES_PROTOCOL is "http/json": only http/protobuf can be sent`, []string{traces, "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json"}},
		{`OTEL_EXPORTER_OTLP_ENDPOINT is not an http or https URL`, []string{all, "127.0.0.1:4318"}},
		{`OTEL_EXPORTER_OTLP_ENDPOINT is not an http or https URL`, []string{all, "http:///v1", traces, "http://127.0.0.1:1"}},
		{`OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is not an http or https URL`, []string{traces, "http://user:pa55word@[broken"}},
		{`OTEL_EXPORTER_OTLP_HEADERS: ` + form, []string{all, "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_HEADERS", "my-secret-key"}},
		{`OTEL_EXPORTER_OTLP_TRACES_HEADERS: ` + form, []string{all, "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_TRACES_HEADERS", "key=secret%zz"}},
		{`insecure HTTP endpoint cannot use TLS client configuration`, []string{all, "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_CERTIFICATE", certificate(t, httptest.NewTLSServer(nil))}},
	} {
		t.Run(strings.Join(c.env, " "), func(t *testing.T) {
			environ(t, c.env...)
			tr, err := NewTracer(t.Context(), "1", silent)
			got := off
			switch {
			case err != nil:
				got = err.Error()
			case tr != nil:
				got = on
				flush(t, tr)
			}
			if got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

// certificate returns the name of a file with the server's.
func certificate(t *testing.T, s *httptest.Server) string {
	t.Cleanup(s.Close)
	file := filepath.Join(t.TempDir(), "ca.pem")
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	if err := os.WriteFile(file, ca, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestWhatTheCollectorGets(t *testing.T) {
	c := newCollector(t)
	tr := c.tracer("OTEL_EXPORTER_OTLP_HEADERS", "x-key=a%20b, x-other = c,", "OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
	tr.Start("", "", "tools/list", "a", "").End("ok", "yes", "")
	flush(t, tr)
	if len(c.requests) != 1 || len(c.spans()) != 1 {
		t.Fatalf("%d requests, spans %v", len(c.requests), c.spans())
	}
	r := c.requests[0]
	got := []string{r.Method, r.URL.Path, r.Header.Get("Content-Type"), r.Header.Get("Content-Encoding"), r.Header.Get("X-Key"), r.Header.Get("X-Other")}
	if d := cmp.Diff([]string{"POST", "/v1/traces", "application/x-protobuf", "gzip", "a b", "c"}, got); d != "" {
		t.Error(d)
	}
	if name := attributes(c.batches[0].Resource.Attributes)["service.name"]; name != "agentarmor" {
		t.Errorf("service.name %q", name)
	}
}

func TestCollectorWithItsOwnCertificate(t *testing.T) {
	c := newCollector(t)
	secure := httptest.NewTLSServer(http.HandlerFunc(c.serve))
	environ(t, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", secure.URL+"/x", "OTEL_EXPORTER_OTLP_CERTIFICATE", certificate(t, secure))
	tr := tracer(t, silent)
	tr.Start("", "", "tools/list", "a", "").End("ok", "yes", "")
	flush(t, tr)
	if len(c.spans()) != 1 || c.requests[0].URL.Path != "/x" {
		t.Errorf("spans %v", c.spans())
	}
}

func FuzzHeaderValues(f *testing.F) {
	f.Add("a=b, c = d%20e,,f=")
	f.Add("=")
	f.Fuzz(func(t *testing.T, list string) {
		values, err := headerValues(list)
		if err != nil && values != nil {
			t.Errorf("both %q and %v", values, err)
		}
		for _, v := range values {
			if v != strings.TrimSpace(v) {
				t.Errorf("value %q", v)
			}
		}
	})
}
