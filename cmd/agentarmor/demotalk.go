package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/agentarmor/agentarmor/fixtures/fakellm"
	"github.com/agentarmor/agentarmor/health"
	"github.com/agentarmor/agentarmor/llm"
)

// exchange is a question and its answer.
type exchange struct{ question, answer string }

// talk is the conversation of the demo. All but the first answer need the first question.
var talk = []exchange{
	{"I fly to Lisbon on Friday.", "Noted: Lisbon, on Friday."},
	{"Where do I fly?", "To Lisbon."},
	{"And when?", "On Friday."},
	{"Sum it up, please.", "You fly to Lisbon on Friday."},
	{"Thank you!", "Have a good flight to Lisbon."},
}

// converse answers the latest question of the talk, if it was told the first.
func converse(q *fakellm.Request) fakellm.Reply {
	asked := string(q.Body)
	for i := len(talk) - 1; i >= 0 && strings.Contains(asked, talk[0].question); i-- {
		if strings.Contains(asked, talk[i].question) {
			return fakellm.Reply{Text: talk[i].answer}
		}
	}
	return fakellm.Reply{Text: "You have not told me."}
}

// ask puts the next question of the talk and wants the answer from one provider.
func (d *demonstration) ask(ctx context.Context, provider string) (string, *llm.Trace, error) {
	turn := talk[d.asked]
	d.asked++
	got, err := d.complete(ctx, turn.question)
	if err != nil {
		return "", nil, err
	}
	text := d.says("user", turn.question) + d.says(got.Provider, got.Text)
	switch {
	case got.Provider != provider || got.Degraded:
		return text + d.account(&got.Trace), nil, fmt.Errorf("%s was to answer", provider)
	case got.Text != turn.answer:
		return text, nil, fmt.Errorf("it should have said: %s", turn.answer)
	}
	return text, &got.Trace, nil
}

// failover wants Groq to answer after Gemini has failed as injected, which leaves Gemini's breaker as said.
func (d *demonstration) failover(ctx context.Context, breaker health.BreakerState) (string, error) {
	text, trace, err := d.ask(ctx, "groq")
	if err != nil {
		return text, err
	}
	text += "\n" + d.account(trace)
	first, last := trace.Attempts[0], trace.Attempts[len(trace.Attempts)-1]
	switch {
	case first.Provider != "gemini" || first.Status != 503 || first.Injected != d.fault.ID:
		return text, errors.New("the first attempt is not Gemini's, with the injected fault")
	case first.BreakerAfter != breaker:
		return text, fmt.Errorf("the breaker of Gemini is %s, not %s", first.BreakerAfter, breaker)
	case last.Provider != "groq" || last.Class != llm.ClassOK:
		return text, errors.New("the last attempt is not Groq's answer")
	}
	return text, nil
}

// returned wants two answers of Gemini, whose breaker has closed with the end of the fault.
func (d *demonstration) returned(ctx context.Context) (string, error) {
	first, _, err := d.ask(ctx, "gemini")
	if err != nil {
		return first, err
	}
	second, trace, err := d.ask(ctx, "gemini")
	if err == nil && trace.Attempts[0].BreakerAfter != health.BreakerClosed {
		err = errors.New("its breaker has not closed")
	}
	return first + second, err
}
