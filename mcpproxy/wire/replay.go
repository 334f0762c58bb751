package wire

// Bounds of what one session keeps for clients that come back with
// Last-Event-ID. The newest message always stays, whatever its size.
const (
	replayMessages = 1024
	replayBytes    = 4 << 20
)

// replayLog holds the messages of a session's streams that have been written,
// or that wait for the client of an ended stream to come back; oldest first.
type replayLog struct {
	events []replayEvent
	bytes  int
}

type replayEvent struct {
	stream *httpStream
	n      int // number in its stream
	raw    []byte
}

// add appends an event and returns the streams of those that had to go for it,
// one entry for each.
func (l *replayLog) add(e replayEvent) (dropped []*httpStream) {
	l.events = append(l.events, e)
	l.bytes += len(e.raw)
	for len(l.events) > 1 && (len(l.events) > replayMessages || l.bytes > replayBytes) {
		old := l.events[0]
		l.events[0] = replayEvent{}
		l.events = l.events[1:]
		l.bytes -= len(old.raw)
		dropped = append(dropped, old.stream)
	}
	return dropped
}

// after returns the messages of st that follow its message n, and the number
// of the first of them. What has been dropped is missing at the front.
func (l *replayLog) after(st *httpStream, n int) (raws [][]byte, first int) {
	for _, e := range l.events {
		if e.stream != st || e.n <= n {
			continue
		}
		if raws == nil {
			first = e.n
		}
		raws = append(raws, e.raw)
	}
	return raws, first
}
