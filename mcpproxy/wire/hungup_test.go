//go:build unix

package wire

import (
	"context"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// A client that died leaves both pipes: its hanging request keeps nobody up.
func TestServeStdioEndsWhenNobodyReads(t *testing.T) {
	h := &echoHandler{hold: make(chan struct{})}
	defer goleak.VerifyNone(t)
	defer close(h.hold)
	inR, inW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- ServeStdio(context.Background(), Pollable(inR), Pollable(outW), h, Limits{}) }()
	if _, err := inW.WriteString(`{"jsonrpc":"2.0","id":1,"method":"held"}` + "\n"); err != nil {
		t.Fatal(err)
	}
	inW.Close()
	select {
	case err := <-served:
		t.Fatalf("ended with %v although the client still reads", err)
	case <-time.After(1500 * time.Millisecond):
	}
	outR.Close()
	select {
	case err := <-served:
		if err != nil || h.closed != 1 {
			t.Errorf("ended with %v, %d sessions closed", err, h.closed)
		}
	case <-time.After(30 * time.Second):
		t.Error("still waits for a client that is gone")
	}
}
