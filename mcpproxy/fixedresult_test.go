package mcpproxy

import (
	"encoding/json"
	"testing"
)

func TestFixedResult(t *testing.T) {
	for raw, want := range map[string]string{
		`"No issues service.\n"`:                   `{"content":[{"type":"text","text":"No issues service.\n"}]}`,
		"{ \"content\": [ ],\n\"isError\": true }": `{"content":[],"isError":true}`,
		`{"a": 1.0, "s":"\""}`:                     `{"content":[{"type":"text","text":"{\"a\":1.0,\"s\":\"\\\"\"}"}],"structuredContent":{"a":1.0,"s":"\""}}`,
		"[1,\n 2]":                                 `{"content":[{"type":"text","text":"[1,2]"}]}`,
		`9007199254740993`:                         `{"content":[{"type":"text","text":"9007199254740993"}]}`,
		`null`:                                     `{"content":[{"type":"text","text":"null"}]}`,
		`"\ud83d"`:                                 `{"content":[{"type":"text","text":"�"}]}`,
	} {
		if got := string(fixedResult(json.RawMessage(raw))); got != want {
			t.Errorf("%s\n is %s\nnot %s", raw, got, want)
		}
	}
}
