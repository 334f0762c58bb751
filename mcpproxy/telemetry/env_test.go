package telemetry

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestEnvironmentDecides(t *testing.T) {
	const all, traces = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
	const on, off = "on", ""
	for _, c := range []struct {
		want string // on, off, or what the error says
		env  []string
	}{
		{off, nil},
		{off, []string{all, ""}},
		{off, []string{"OTEL_TRACES_EXPORTER", "otlp"}},
		{off, []string{"OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"}},
		{on, []string{all, "http://127.0.0.1:1"}},
		{on, []string{traces, "https://127.0.0.1:1/x"}},
		{on, []string{all, "http://127.0.0.1:1", "OTEL_TRACES_EXPORTER", "otlp", "OTEL_SDK_DISABLED", "false"}},
		{on, []string{all, "http://127.0.0.1:1", "OTEL_TRACES_EXPORTER", "", "OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"}},
		{on, []string{all, "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf"}},
		{off, []string{all, "http://127.0.0.1:1", "OTEL_SDK_DISABLED", "TRUE"}},
		{off, []string{all, "http://127.0.0.1:1", "OTEL_TRACES_EXPORTER", "none"}},
		{off, []string{all, "http://127.0.0.1:1", "OTEL_TRACES_EXPORTER", "zipkin"}},
		{`OTEL_EXPORTER_OTLP_PROTOCOL is "grpc": only http/protobuf can be sent`, []string{all, "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"}},
		{`OTEL_EXPORTER_OTLP_TRACES_PROTOCOL is "http/json": only http/protobuf can be sent`, []string{traces, "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json"}},
		{`OTEL_EXPORTER_OTLP_ENDPOINT is not an http or https URL`, []string{all, "127.0.0.1:4318"}},
		{`OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is not an http or https URL`, []string{traces, "http://user:pa55word@[broken"}},
		{`OTEL_EXPORTER_OTLP_HEADERS: not of the form key=value,key=value with values in percent encoding`, []string{all, "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_HEADERS", "my-secret-key"}},
		{`OTEL_EXPORTER_OTLP_TRACES_HEADERS: not of the form key=value,key=value with values in percent encoding`, []string{all, "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_TRACES_HEADERS", "key=secret%zz"}},
		{`OTEL_EXPORTER_OTLP_TIMEOUT is "10s": not a number of milliseconds`, []string{all, "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_TIMEOUT", "10s"}},
		{`OTEL_EXPORTER_OTLP_COMPRESSION is "zstd": only gzip and none are known`, []string{all, "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_COMPRESSION", "zstd"}},
		{`OTEL_EXPORTER_OTLP_CERTIFICATE: open nowhere.pem: no such file or directory`, []string{all, "https://127.0.0.1:1", "OTEL_EXPORTER_OTLP_CERTIFICATE", "nowhere.pem"}},
		{`OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and OTEL_EXPORTER_OTLP_CLIENT_KEY: open nowhere.pem: no such file or directory`, []string{all, "https://127.0.0.1:1", "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", "nowhere.pem"}},
	} {
		tr, err := NewTracer(t.Context(), "1", lookup(c.env...), nil)
		got := off
		switch {
		case err != nil:
			got = err.Error()
		case tr != nil:
			got = on
			flush(t, tr)
		}
		if got != c.want {
			t.Errorf("%q: %q, want %q", c.env, got, c.want)
		}
	}
}

func TestDestination(t *testing.T) {
	type parts struct {
		URL     string
		Headers http.Header
		Gzip    bool
		Timeout time.Duration
	}
	for _, c := range []struct {
		want parts
		env  []string
	}{
		{parts{"http://a/v1/traces", http.Header{}, false, 10 * time.Second}, []string{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://a"}},
		{parts{"http://a/base/v1/traces", http.Header{}, false, 10 * time.Second}, []string{"OTEL_EXPORTER_OTLP_ENDPOINT", " http://a/base/ "}},
		{parts{"https://b/x", http.Header{}, false, 10 * time.Second}, []string{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://a", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://b/x"}},
		{parts{"https://b/", http.Header{}, false, 10 * time.Second}, []string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://b"}},
		{parts{"http://a/v1/traces", http.Header{"X-Key": {"a b=c"}, "Authorization": {"Bearer t"}}, true, 1500 * time.Millisecond},
			[]string{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://a", "OTEL_EXPORTER_OTLP_HEADERS", "x-key=a%20b=c, authorization = Bearer%20t,",
				"OTEL_EXPORTER_OTLP_COMPRESSION", "gzip", "OTEL_EXPORTER_OTLP_TIMEOUT", "1500"}},
		{parts{"http://a/v1/traces", http.Header{"Y": {"2"}}, false, time.Second},
			[]string{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://a", "OTEL_EXPORTER_OTLP_HEADERS", "x=1", "OTEL_EXPORTER_OTLP_TRACES_HEADERS", "y=2",
				"OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "none", "OTEL_EXPORTER_OTLP_TIMEOUT", "5", "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "1000"}},
	} {
		d, err := env(lookup(c.env...)).destination()
		if err != nil {
			t.Errorf("%q: %v", c.env, err)
		} else if diff := cmp.Diff(c.want, parts{d.url, d.headers, d.gzip, d.timeout}); diff != "" {
			t.Errorf("%q: %s", c.env, diff)
		}
	}
}

func TestCertificateMustBeOne(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, []byte("none"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := env(lookup("OTEL_EXPORTER_OTLP_ENDPOINT", "https://a", "OTEL_EXPORTER_OTLP_CERTIFICATE", file)).destination()
	if err == nil || !strings.Contains(err.Error(), "no certificate in") {
		t.Errorf("error %v", err)
	}
}

func FuzzPairs(f *testing.F) {
	f.Add("a=b, c = d%20e,,f=")
	f.Add("=")
	f.Fuzz(func(t *testing.T, text string) {
		list, err := pairs(text)
		if err != nil && list != nil {
			t.Errorf("both %q and %v", list, err)
		}
		for _, kv := range list {
			if kv[0] == "" || strings.ContainsAny(kv[0], ",=") {
				t.Errorf("key %q", kv[0])
			}
		}
	})
}
