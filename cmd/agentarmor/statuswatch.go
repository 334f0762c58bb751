package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"strings"
	"time"
)

// watchEvery is how often a watched status is read when nothing happens.
const watchEvery = 2 * time.Second

// statusWatch shows the status again and again: in place on a terminal, else
// one block, or one line of JSON, for each change.
type statusWatch struct {
	out, errs io.Writer
	json      bool
	live      bool          // out is a terminal
	changed   chan struct{} // read now, do not wait
	paint     func(colour, text string) string
	last      any // what was shown last, as far as it counts as a change
}

func newStatusWatch(out, errs io.Writer, json bool) *statusWatch {
	return &statusWatch{
		out: out, errs: errs, json: json,
		live:    !json && terminal(out),
		changed: make(chan struct{}, 1),
		paint:   colours(out),
	}
}

// run reads and shows until ctx ends, which is no error, or out is closed. Only the
// first reading must succeed: an endpoint that goes away may come back.
func (w *statusWatch) run(ctx context.Context, read func() ([]byte, error)) error {
	wait := time.NewTimer(0)
	defer wait.Stop()
	for first := true; ; first = false {
		raw, err := read()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil && first {
			return err
		}
		if err := w.show(raw, err); err != nil {
			return err
		}
		wait.Reset(watchEvery)
		select {
		case <-ctx.Done():
			return nil
		case <-w.changed:
		case <-wait.C:
		}
	}
}

// show writes one document, or why there is none.
func (w *statusWatch) show(raw []byte, problem error) error {
	var doc *statusDocument
	if problem == nil {
		doc, problem = readDocument(raw)
	}
	if problem != nil {
		return w.complain(problem)
	}
	news := w.news(doc.steady())
	if !news && !w.live {
		return nil
	}
	v := statusView{now: time.Now(), paint: w.paint}
	switch {
	case w.live:
		return w.redraw(v.render(doc))
	case w.json:
		var line bytes.Buffer
		if err := json.Compact(&line, raw); err != nil {
			return err
		}
		line.WriteByte('\n')
		_, err := line.WriteTo(w.out)
		return err
	}
	_, err := fmt.Fprintf(w.out, "%s\n%s\n", v.now.UTC().Format(time.RFC3339), v.render(doc))
	return err
}

// complain tells that there is no document now; it is no part of what is
// written into a pipe or a file.
func (w *statusWatch) complain(problem error) error {
	text := oneLine(problem.Error())
	news := w.news(text)
	if w.live {
		return w.redraw(w.paint(red, text) + "\n")
	}
	if news {
		fmt.Fprintln(w.errs, "agentarmor:", text)
	}
	return nil
}

// news tells whether now is another thing than what was shown last.
func (w *statusWatch) news(now any) bool {
	same := reflect.DeepEqual(w.last, now)
	w.last = now
	return !same
}

// redraw overwrites what stands on the terminal, line by line so that it does
// not flicker, and clears the rest.
func (w *statusWatch) redraw(text string) error {
	const home, endOfLine, endOfScreen = "\x1b[H", "\x1b[K\n", "\x1b[J"
	_, err := io.WriteString(w.out, home+strings.ReplaceAll(text, "\n", endOfLine)+endOfScreen)
	return err
}
