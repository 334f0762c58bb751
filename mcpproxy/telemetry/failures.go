package telemetry

import (
	"cmp"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr/funcr"
	"go.opentelemetry.io/otel"
	"golang.org/x/time/rate"
)

// logFailures sends what OpenTelemetry reports about itself, for which a process
// has one place, to log: without secrets, and beyond the first few once a minute.
func logFailures(log *slog.Logger, secrets []string) {
	mask := masking(secrets)
	seldom := &rate.Sometimes{First: 5, Interval: time.Minute}
	report := func(reason string) {
		seldom.Do(func() {
			log.Warn("OpenTelemetry reports a failure", "reason", text(mask.Replace(reason), maxError))
		})
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { report(err.Error()) }))
	otel.SetLogger(funcr.New(func(_, text string) { report(text) }, funcr.Options{})) // errors alone
}

// masking replaces secrets, the longest first: one may begin with another. One of
// less than 4 bytes is left alone, it would be found in every other word.
func masking(secrets []string) *strings.Replacer {
	secrets = slices.SortedFunc(slices.Values(secrets), func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	var pairs []string
	for _, secret := range secrets {
		if len(secret) >= 4 {
			pairs = append(pairs, secret, "***")
		}
	}
	return strings.NewReplacer(pairs...)
}
