package llm_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentarmor/agentarmor/llm"
)

// stream runs Stream and returns what was emitted.
func stream(ctx context.Context, c *llm.Chain) (emitted string, resp *llm.Response, err error) {
	var b strings.Builder
	resp, err = c.Stream(ctx, llm.Prompt("hi"), func(s string) { b.WriteString(s) })
	return b.String(), resp, err
}

func TestStream(t *testing.T) {
	chunks := []string{"the ", "sky ", "is "}
	for _, tt := range []struct {
		name    string
		step    llm.Step
		emitted string
		story   string
		class   llm.Class // of the error
	}{
		{"whole", llm.Step{Chunks: chunks}, "the sky is ", "gemini:ok", ""},
		{"429 before the first text", llm.Step{Status: 429}, "ok", "gemini:throttled groq:ok", ""},
		{"hang before the first text", llm.Step{Hang: true}, "ok", "gemini:timeout groq:ok", ""},
		{"broken before the first text", llm.Step{Chunks: []string{""}, Err: errors.New("EOF")}, "ok", "gemini:lost groq:ok", ""},
		{"broken after three", llm.Step{Chunks: chunks, Err: errors.New("EOF")}, "the sky is ", "gemini:lost", llm.ClassLost},
		{"slow, but alive", llm.Step{Chunks: append(chunks, "blue"), Pause: 12 * time.Second}, "the sky is blue", "gemini:ok", ""},
		{"hang after the first", llm.Step{Chunks: []string{"", "the "}, Pause: 19 * time.Second, Delay: -1, Err: errors.New("EOF")}, "ok", "gemini:timeout groq:ok", ""},
		{"refused by a filter", llm.Step{Chunks: chunks, Response: &llm.Response{Text: "the sky is ", FinishReason: llm.FinishBlocked}}, "the sky is ", "gemini:blocked", llm.ClassBlocked},
		{"cut", llm.Step{Chunks: chunks, Response: &llm.Response{Text: "the sky is ", FinishReason: llm.FinishLength}}, "the sky is ", "gemini:cut", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := chain(t, llm.Options{}, llm.NewFake("gemini", tt.step), llm.NewFake("groq"))
				emitted, resp, err := stream(t.Context(), c)
				if emitted != tt.emitted {
					t.Errorf("emitted %q, want %q", emitted, tt.emitted)
				}
				var tr *llm.Trace
				switch e, ok := errors.AsType[*llm.Error](err); {
				case ok:
					tr = e.Trace
					if e.Class != tt.class || e.Partial != tt.emitted {
						t.Errorf("%v, with %q", e, e.Partial)
					}
				case tt.class != "":
					t.Errorf("no error, but %+v", resp)
				default:
					tr = resp.Trace
				}
				if story(tr) != tt.story {
					t.Errorf("%s, want %s", story(tr), tt.story)
				}
			})
		})
	}
}

// TestStreamOfASchema holds that an answer to a schema is emitted at once, and
// only when it matches: the next entry may do better.
func TestStreamOfASchema(t *testing.T) {
	step := func(chunks ...string) llm.Step { return llm.Step{Chunks: chunks} }
	half := llm.Step{Chunks: []string{"{"}, Response: &llm.Response{Text: "{", FinishReason: llm.FinishLength}}
	for _, tt := range []struct {
		name          string
		first, second llm.Step
		want, story   string
	}{
		{"matches", step(`{"a"`, `:1}`), step(), `{"a":1}`, "gemini:ok"},
		{"in a fence", step("```json\n", `{"a":1}`, "\n```"), step(), `{"a":1}`, "gemini:ok"},
		{"does not match", step(`{"a"`, `:true}`), step(`{"a":2}`), `{"a":2}`, "gemini:schema groq:ok"},
		{"cut, both", half, half, "{", "gemini:cut groq:cut"},
	} {
		for _, hedge := range []time.Duration{0, time.Second} {
			t.Run(tt.name, func(t *testing.T) {
				var pieces []string
				c := chain(t, llm.Options{HedgeAfter: hedge}, llm.NewFake("gemini", tt.first), llm.NewFake("groq", tt.second))
				r := llm.Prompt("hi")
				r.Schema = []byte(`{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}`)
				resp, err := c.Stream(t.Context(), r, func(s string) { pieces = append(pieces, s) })
				if err != nil || resp.Text != tt.want || len(pieces) != 1 || pieces[0] != tt.want || story(resp.Trace) != tt.story {
					t.Errorf("%q, %+v, %v", pieces, resp, err)
				}
			})
		}
	}
}

// TestStreamIdle holds that a stream that stops in the middle ends.
func TestStreamIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := chain(t, llm.Options{}, llm.NewFake("gemini", llm.Step{Chunks: []string{"the ", "sky"}, Pause: 21 * time.Second}))
		// The first text comes in the second attempt's time only if the timeout is of each text.
		_, _, err := stream(t.Context(), c)
		if err != nil {
			t.Fatalf("nothing had been emitted: %v", err)
		}
		f := llm.NewFake("slow").Script(func(int, *llm.Request) llm.Step { return llm.Step{Chunks: []string{"a"}, Pause: time.Second} })
		stall := stalling{f}
		c, err = llm.New([]llm.Entry{{Provider: stall}}, llm.Options{})
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		emitted, _, err := stream(t.Context(), c)
		if e, ok := errors.AsType[*llm.Error](err); !ok || e.Class != llm.ClassTimeout || e.Partial != "a" || emitted != "a" {
			t.Errorf("%q, %v", emitted, err)
		}
		if took := time.Since(start); took != 21*time.Second {
			t.Errorf("took %s", took)
		}
	})
}

// stalling emits what the fake does and then nothing more.
type stalling struct{ *llm.Fake }

func (s stalling) Generate(ctx context.Context, r *llm.Request, emit func(string)) (*llm.Response, error) {
	if _, err := s.Fake.Generate(ctx, r, emit); err != nil {
		return nil, err
	}
	<-ctx.Done()
	return nil, llm.TransportError(ctx.Err())
}

func TestStreamCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := llm.NewFake("gemini", llm.Step{Chunks: strings.Split("abcdefgh", ""), Pause: time.Second})
		c := chain(t, llm.Options{}, f, llm.NewFake("groq"))
		ctx, cancel := context.WithTimeout(t.Context(), 3500*time.Millisecond)
		defer cancel()
		emitted, _, err := stream(ctx, c)
		if e, ok := errors.AsType[*llm.Error](err); !ok || e.Class != llm.ClassCancelled || emitted != "abc" || e.Partial != "abc" {
			t.Errorf("%q, %v", emitted, err)
		}
		if n, _ := f.Running(); n != 0 {
			t.Error("the provider still works")
		}
	})
}
