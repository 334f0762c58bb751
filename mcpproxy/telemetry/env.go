package telemetry

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
)

// env looks up a variable; one that is empty counts as not set, as the
// specification of OpenTelemetry's environment variables has it.
type env func(string) (string, bool)

func (e env) get(name string) string {
	value, _ := e(name)
	return strings.TrimSpace(value)
}

// otlp returns a variable of the exporter, the one for traces first, and the
// name that was found.
func (e env) otlp(name string) (value, found string) {
	const all, traces = "OTEL_EXPORTER_OTLP_", "OTEL_EXPORTER_OTLP_TRACES_"
	if value = e.get(traces + name); value != "" {
		return value, traces + name
	}
	return e.get(all + name), all + name
}

// traces reports whether the environment asks for traces.
func (e env) traces() bool {
	endpoint, _ := e.otlp("ENDPOINT")
	return endpoint != "" && !strings.EqualFold(e.get("OTEL_SDK_DISABLED"), "true") &&
		strings.EqualFold(cmp.Or(e.get("OTEL_TRACES_EXPORTER"), "otlp"), "otlp")
}

// destination is where and how traces are sent.
type destination struct {
	url     string
	headers http.Header
	gzip    bool
	timeout time.Duration
	tls     *tls.Config
	mask    *strings.Replacer // of what must not be told
}

// destination reads the exporter's variables. Its errors name them and hold no
// value that may be secret.
func (e env) destination() (destination, error) {
	d := destination{headers: http.Header{}, timeout: 10 * time.Second}
	if protocol, name := e.otlp("PROTOCOL"); protocol != "" && protocol != "http/protobuf" {
		return d, fmt.Errorf("%s is %q: only http/protobuf can be sent", name, protocol)
	}
	var err error
	if d.url, err = e.endpoint(); err != nil {
		return d, err
	}
	headers, name := e.otlp("HEADERS")
	list, err := pairs(headers)
	if err != nil {
		return d, fmt.Errorf("%s: %w", name, err)
	}
	for _, h := range list {
		d.headers.Set(h[0], h[1])
	}
	d.mask = masking(d.url, headers, list)
	if ms, name := e.otlp("TIMEOUT"); ms != "" {
		n, err := strconv.Atoi(ms)
		if err != nil || n <= 0 {
			return d, fmt.Errorf("%s is %q: not a number of milliseconds", name, ms)
		}
		d.timeout = time.Duration(n) * time.Millisecond
	}
	switch compression, name := e.otlp("COMPRESSION"); compression {
	case "", "none":
	case "gzip":
		d.gzip = true
	default:
		return d, fmt.Errorf("%s is %q: only gzip and none are known", name, compression)
	}
	d.tls, err = e.tls()
	return d, err
}

// endpoint is the URL of the traces: the variable for all signals is a base, the
// one for traces is used as it is.
func (e env) endpoint() (string, error) {
	text, name := e.otlp("ENDPOINT")
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return "", fmt.Errorf("%s is not an http or https URL", name)
	}
	if !strings.Contains(name, "TRACES") {
		u = u.JoinPath("v1/traces")
	}
	if u.Path == "" {
		u.Path = "/"
	}
	return u.String(), nil
}

// tls reads the certificates, nil when there are none.
func (e env) tls() (*tls.Config, error) {
	ca, caName := e.otlp("CERTIFICATE")
	cert, certName := e.otlp("CLIENT_CERTIFICATE")
	key, keyName := e.otlp("CLIENT_KEY")
	if ca == "" && cert == "" && key == "" {
		return nil, nil
	}
	var config tls.Config
	if ca != "" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", caName, err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s: no certificate in %s", caName, ca)
		}
	}
	if cert != "" || key != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("%s and %s: %w", certName, keyName, err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return &config, nil
}

// resource says who sends the traces. What cannot be read of
// OTEL_RESOURCE_ATTRIBUTES is left out as a whole, as the specification has it.
func (e env) resource(version string) []attribute.KeyValue {
	attrs := []attribute.KeyValue{
		attribute.String("service.name", "agentarmor"), attribute.String("service.version", version),
		attribute.String("telemetry.sdk.name", "opentelemetry"), attribute.String("telemetry.sdk.language", "go"),
	}
	if list, err := pairs(e.get("OTEL_RESOURCE_ATTRIBUTES")); err == nil {
		for _, kv := range list {
			attrs = append(attrs, attribute.String(kv[0], kv[1]))
		}
	}
	if name := e.get("OTEL_SERVICE_NAME"); name != "" {
		attrs = append(attrs, attribute.String("service.name", name)) // of two the last counts
	}
	return attrs
}

// pairs reads "key=value,…" with values in percent encoding.
func pairs(text string) ([][2]string, error) {
	var list [][2]string
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		key, value, ok := strings.Cut(part, "=")
		value, err := url.PathUnescape(strings.TrimSpace(value))
		if key = strings.TrimSpace(key); !ok || key == "" || err != nil {
			return nil, errors.New("not of the form key=value,key=value with values in percent encoding")
		}
		list = append(list, [2]string{key, value})
	}
	return list, nil
}
