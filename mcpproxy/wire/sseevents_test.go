package wire

import (
	"errors"
	"io"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
)

type plainEvent struct {
	Name, Data string
	Over       bool
}

// parseEvents reads all of src.
func parseEvents(src io.Reader, limit int) (evs []plainEvent, r *eventReader, err error) {
	r = newEventReader(src, limit)
	defer r.free()
	for {
		ev, err := r.next()
		if err != nil {
			return evs, r, err
		}
		evs = append(evs, plainEvent{ev.name, string(ev.data), ev.over})
	}
}

func TestEvents(t *testing.T) {
	long := strings.Repeat("x", 40_000)
	for _, c := range []struct {
		name, in string
		limit    int
		want     []plainEvent
		lastID   string
		retry    time.Duration
	}{
		{name: "plain", in: "data: a\n\ndata:b\n\n", want: []plainEvent{{Data: "a"}, {Data: "b"}}},
		{name: "one space only", in: "data:  a\n\n", want: []plainEvent{{Data: " a"}}},
		{name: "line ends", in: "data: a\r\ndata: b\rdata: c\n\r\n\rdata: d\r\r", want: []plainEvent{{Data: "a\nb\nc"}, {Data: "d"}}},
		{name: "names", in: "event: endpoint\ndata: /x\n\nevent: message\ndata: y\n\n", want: []plainEvent{{Name: "endpoint", Data: "/x"}, {Name: "message", Data: "y"}}},
		{name: "name of an event without data", in: "event: old\n\ndata: y\n\n", want: []plainEvent{{Data: "y"}}},
		{name: "comments and unknown fields", in: ": ping\n\n:\r\n\nfoo: 1\ndata: a\nbar\n\n", want: []plainEvent{{Data: "a"}}},
		{name: "priming", in: "id: 7\nretry: 250\ndata:\n\n", lastID: "7", retry: 250 * time.Millisecond},
		{name: "id persists", in: "id: 7\ndata: a\n\ndata: b\n\n", want: []plainEvent{{Data: "a"}, {Data: "b"}}, lastID: "7"},
		{name: "id of an unfinished event", in: "id: 7\ndata: a\n\nid: 8\ndata: b\n", want: []plainEvent{{Data: "a"}}, lastID: "7"},
		{name: "id with NUL", in: "id: a\x00\ndata: a\n\n", want: []plainEvent{{Data: "a"}}},
		{name: "bad retry", in: "retry: -1\nretry: 1s\nretry: 99999999999999\ndata: a\n\n", want: []plainEvent{{Data: "a"}}},
		{name: "byte order mark", in: "\xef\xbb\xbfdata: a\n\n", want: []plainEvent{{Data: "a"}}},
		{name: "large", in: "data: " + long + "\n\ndata: b\n\n", want: []plainEvent{{Data: long}, {Data: "b"}}},
		{name: "at the limit", in: "data: abcd\n\ndata: b\n\n", limit: 4, want: []plainEvent{{Data: "abcd"}, {Data: "b"}}},
		{name: "over the limit", in: "data: abcde\n\ndata: b\n\n", limit: 4, want: []plainEvent{{Data: "abcde", Over: true}, {Data: "b"}}},
		{name: "far over", in: "data: " + long + "\n\ndata: b\n\n", limit: 8, want: []plainEvent{{Data: long[:overHead-len("data: ")], Over: true}, {Data: "b"}}},
		{name: "over in lines", in: "data: abc\ndata: d\ndata: e\n\ndata: b\n\n", limit: 4, want: []plainEvent{{Data: "abc\nd", Over: true}, {Data: "b"}}},
		{name: "long comment", in: ":" + long + "\ndata: b\n\n", limit: 4, want: []plainEvent{{Data: "b"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			limit := c.limit
			if limit == 0 {
				limit = 1 << 20
			}
			readers := map[string]io.Reader{"whole": strings.NewReader(c.in), "halves": iotest.HalfReader(strings.NewReader(c.in))}
			if len(c.in) < 1000 {
				readers["bytes"] = iotest.OneByteReader(strings.NewReader(c.in))
			}
			for how, src := range readers {
				got, r, err := parseEvents(src, limit)
				if how != "whole" {
					// How much of a long head is kept depends on the reads.
					for i := range got {
						if got[i].Over && i < len(c.want) && strings.HasPrefix(c.want[i].Data, got[i].Data) {
							got[i].Data = c.want[i].Data
						}
					}
				}
				if diff := cmp.Diff(c.want, got); diff != "" {
					t.Errorf("%s: events (-want +got):\n%s", how, diff)
				}
				if err != io.EOF || r.lastID != c.lastID || max(r.retry, 0) != c.retry {
					t.Errorf("%s: err %v, lastID %q, retry %v", how, err, r.lastID, r.retry)
				}
			}
		})
	}
}

// A lone CR ends a line at once: no byte after it is waited for.
func TestEventsDoNotWaitAfterCR(t *testing.T) {
	pr, pw := io.Pipe()
	defer pw.Close()
	r := newEventReader(pr, 100)
	defer r.free()
	go pw.Write([]byte("data: a\r\r"))
	ev, err := r.next()
	if err != nil || string(ev.data) != "a" {
		t.Fatalf("next = %q, %v", ev.data, err)
	}
}

// endless is a line that never ends.
type endless struct{ left int }

func (e *endless) Read(p []byte) (int, error) {
	if e.left -= len(p); e.left < 0 {
		return 0, errors.New("cut")
	}
	for i := range p {
		p[i] = 'd'
	}
	return len(p), nil
}

func TestEventsBoundMemory(t *testing.T) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, _, err := parseEvents(&endless{64 << 20}, 64<<10)
	runtime.ReadMemStats(&after)
	if err == nil || err.Error() != "cut" {
		t.Errorf("err = %v", err)
	}
	if n := after.TotalAlloc - before.TotalAlloc; n > 4<<20 {
		t.Errorf("%d bytes allocated for a line of 64 MiB over a limit of 64 KiB", n)
	}
}

func FuzzEvents(f *testing.F) {
	f.Add("data: a\n\n", 100)
	f.Add("id: 1\r\ndata: a\rdata\n\n:\n\ndata: 12345678\n\n", 6)
	f.Add("\xef\xbb\xbfretry: 1\nevent: x\ndata:\n\n", 0)
	f.Fuzz(func(t *testing.T, in string, limit int) {
		limit &= 1<<16 - 1
		whole, a, _ := parseEvents(strings.NewReader(in), limit)
		pieces, b, _ := parseEvents(iotest.OneByteReader(strings.NewReader(in)), limit)
		for _, evs := range [][]plainEvent{whole, pieces} {
			for i := range evs {
				if e := &evs[i]; e.Over {
					e.Data = ""
				} else if len(e.Data) > limit+1 || e.Data == "" {
					t.Fatalf("event of %d bytes, limit %d", len(e.Data), limit)
				}
			}
		}
		if diff := cmp.Diff(whole, pieces); diff != "" {
			t.Fatalf("the reads change the events:\n%s", diff)
		}
		if a.lastID != b.lastID || a.retry != b.retry {
			t.Fatal("the reads change id or retry")
		}
	})
}
