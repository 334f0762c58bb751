package chaos

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"unicode/utf8"
)

// toolError has a tool answer, without being asked, that it failed: a result
// with isError and message as its text. A provider answers 400
// tool_use_failed, as Groq does when a model's tool call does not fit the tool.
var toolError = kind{
	about:      "the tool says that it failed",
	parameters: []string{"message"},
	ops:        []Op{ToolCall},
	check: func(s Spec) error {
		if utf8.RuneCountInString(s.Message) > MaxMessage {
			return fmt.Errorf("message has more than %d characters", MaxMessage)
		}
		return nil
	},
	start: func(s Spec) func(*rand.Rand, Call) Decision {
		d := Decision{Action: FailTool, Text: cmp.Or(s.Message, "The tool failed.")}
		return func(*rand.Rand, Call) Decision { return d }
	},
}
