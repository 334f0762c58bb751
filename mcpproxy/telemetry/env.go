package telemetry

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
)

// prefixes begin the names of the exporter's variables; the one for traces alone
// comes first.
var prefixes = [...]string{"OTEL_EXPORTER_OTLP_TRACES_", "OTEL_EXPORTER_OTLP_"}

// variable returns a variable of the environment; one that is empty counts as
// not set, as OpenTelemetry's specification has it.
func variable(name string) string { return strings.TrimSpace(os.Getenv(name)) }

// wanted reports whether the environment asks for traces.
func wanted() bool {
	return cmp.Or(variable(prefixes[0]+"ENDPOINT"), variable(prefixes[1]+"ENDPOINT")) != "" &&
		!strings.EqualFold(variable("OTEL_SDK_DISABLED"), "true") &&
		strings.EqualFold(cmp.Or(variable("OTEL_TRACES_EXPORTER"), "otlp"), "otlp")
}

// check refuses what the exporter would leave out: then traces went elsewhere or
// without their key. No error holds a value that may be secret.
func check() error {
	for _, prefix := range prefixes {
		if protocol := variable(prefix + "PROTOCOL"); protocol != "" {
			if protocol != "http/protobuf" {
				return fmt.Errorf("%sPROTOCOL is %q: only http/protobuf can be sent", prefix, protocol)
			}
			break
		}
	}
	for _, prefix := range prefixes {
		if endpoint := variable(prefix + "ENDPOINT"); endpoint != "" {
			u, err := url.Parse(endpoint)
			if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
				return fmt.Errorf("%sENDPOINT is not an http or https URL", prefix)
			}
		}
		if _, err := headerValues(variable(prefix + "HEADERS")); err != nil {
			return fmt.Errorf("%sHEADERS: %w", prefix, err)
		}
	}
	return nil
}

// headerValues returns the values of a list key=value,… as they are sent.
func headerValues(list string) ([]string, error) {
	var values []string
	for part := range strings.SplitSeq(list, ",") {
		if strings.TrimSpace(part) == "" {
			continue
		}
		_, value, ok := strings.Cut(part, "=")
		value, err := url.PathUnescape(value)
		if !ok || err != nil {
			return nil, errors.New("not of the form key=value,key=value with values in percent encoding")
		}
		values = append(values, strings.TrimSpace(value))
	}
	return values, nil
}

// secrets are what the environment holds for the collector's eyes only: values
// of headers, and user, password and query of its address.
func secrets() []string {
	var all []string
	for _, prefix := range prefixes {
		values, _ := headerValues(variable(prefix + "HEADERS"))
		for _, value := range values {
			all = append(append(all, value), strings.Fields(value)...) // "Bearer" and what follows
		}
		if u, err := url.Parse(variable(prefix + "ENDPOINT")); err == nil {
			password, _ := u.User.Password()
			all = append(all, u.User.String(), password, u.RawQuery)
		}
	}
	return all
}
