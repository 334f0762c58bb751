package llm

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"encoding/json"
	"io"
)

// openAIAnswer checks a whole answer: a 200 may hold an error or something
// that is not the API's.
func (x *exchange) openAIAnswer(body []byte) ([]byte, *Error) {
	var answer struct {
		Error   json.RawMessage   `json:"error"`
		Choices []json.RawMessage `json:"choices"`
	}
	err := json.NewDecoder(bytes.NewReader(body)).Decode(&answer)
	switch {
	case err == io.ErrUnexpectedEOF:
		return nil, TransportError(err)
	case err != nil, answer.Choices == nil, isSet(answer.Error):
		return nil, x.httpError(body)
	}
	return body, nil
}

// isSet tells whether an optional value is there and not null.
func isSet(raw json.RawMessage) bool { return len(raw) > 0 && string(raw) != "null" }

// openAIEvents passes on the data of a stream of events, one a line, and
// nothing else: the library counts and keeps comments, and loses the code of
// an error in mid-stream.
func (x *exchange) openAIEvents(r io.Reader) func() ([]byte, error) {
	lines := bufio.NewReader(r)
	return func() ([]byte, error) {
		for {
			line, err := lines.ReadBytes('\n')
			data, found := bytes.CutPrefix(bytes.TrimSpace(line), []byte("data:"))
			data = bytes.TrimSpace(data)
			switch {
			case !found && bytes.HasPrefix(data, []byte("{")): // an answer that is no stream
				rest, _ := io.ReadAll(io.LimitReader(lines, maxBody))
				return nil, x.fail(x.httpError(append(line, rest...)))
			case string(data) == "[DONE]":
				x.ended = true
				return append(line, '\n'), nil
			case err != nil: // a line without an end is not complete either
				return nil, err
			case found && isError(data):
				return nil, x.fail(x.httpError(data))
			case found && len(data) > 0:
				return line, nil
			}
		}
	}
}

func isError(data []byte) bool {
	var event struct {
		Error json.RawMessage `json:"error"`
	}
	return bytes.Contains(data, []byte(`"error"`)) && json.Unmarshal(data, &event) == nil && isSet(event.Error)
}

// newCallID makes up the ID of a tool call.
func newCallID() string { return "call_" + rand.Text()[:20] }
