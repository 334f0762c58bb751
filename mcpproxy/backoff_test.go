package mcpproxy

import (
	"testing"
	"time"
)

func TestBackoff(t *testing.T) {
	b := backoff{base: time.Second, max: 5 * time.Minute}
	near := func(got, want time.Duration) {
		t.Helper()
		if got < want*8/10 || got > want*12/10 {
			t.Errorf("%v, want %v ± 20 %%", got, want)
		}
	}
	for _, want := range []time.Duration{1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300} {
		near(b.next(), want*time.Second)
	}
	for range 100 {
		near(b.next(), b.max)
	}
	b.reset()
	near(b.next(), time.Second)
	near(b.slowest(), b.max)
	seen := map[time.Duration]bool{}
	for range 10 {
		seen[jitter(time.Hour)] = true
	}
	if len(seen) < 5 {
		t.Errorf("no jitter: %v", seen)
	}
}
