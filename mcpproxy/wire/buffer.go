package wire

import "sync"

// Buffers between these sizes are used again once a LineWriter has written
// them: allocating and collecting large messages costs more than moving them.
const (
	reuseMin = 32 << 10
	reuseMax = 1 << 20
)

var buffers sync.Pool // of *[]byte

// Buffer returns an empty buffer with room for n bytes, for a message that goes
// to [Stream.Answer] or [Peer.Send], which take ownership of it.
func Buffer(n int) []byte {
	if n >= reuseMin && n <= reuseMax {
		if b, ok := buffers.Get().(*[]byte); ok && cap(*b) >= n {
			return (*b)[:0]
		}
		return make([]byte, 0, n+n/8)
	}
	return make([]byte, 0, n)
}

// release gives a written message's memory to a later one.
func release(b []byte) {
	if cap(b) >= reuseMin && cap(b) <= 2*reuseMax {
		buffers.Put(&b)
	}
}
