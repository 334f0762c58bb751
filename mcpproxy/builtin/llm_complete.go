package builtin

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

	"github.com/agentarmor/agentarmor/llm"
)

// LLMComplete is the name of the tool that asks models.
const LLMComplete = "llm.complete"

const completeText = "Asks a language model and returns its answer. When a model fails, is too slow or over its limits, the next one of a chain is asked; the result tells which one answered, and how. " +
	"When none can be reached the result is an error with degraded: true that says when to try again. A caller that wants progress gets the text as it arrives, unless response_schema is given."

func addComplete(s *server.MCPServer, src Source) {
	tool := mcp.NewToolWithRawSchema(LLMComplete, completeText, completeInput(src.LLM))
	tool.RawOutputSchema = completeOutput
	tool.Annotations = mcp.ToolAnnotation{
		Title: "Ask a language model", ReadOnlyHint: new(true), DestructiveHint: new(false), IdempotentHint: new(false), OpenWorldHint: new(true),
	}
	s.AddTool(tool, src.complete)
}

// complete answers llm.complete.
func (src Source) complete(ctx context.Context, r mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	args, err := parseArguments(r.Params.RawArguments)
	if err != nil {
		return failure(completion{Text: err.Error(), Error: &problem{Class: llm.ClassRejected}}), nil
	}
	if src.LLM == nil {
		return failure(completion{Text: noModel, Error: &problem{Class: llm.ClassNone}}), nil
	}
	req, err := args.request()
	if err != nil {
		return failure(completion{Text: err.Error(), Error: &problem{Class: llm.ClassRejected}}), nil
	}
	resp, err := src.ask(ctx, req)
	var out completion
	if err != nil {
		out = failed(err)
	} else {
		out = answered(resp)
	}
	if args.Model != "" && !known(src.LLM.Status(), args.Model) {
		out.Note = "No model called " + short(args.Model) + " is configured; the chain was asked in its own order."
	}
	if t, ok := out.Trace.(*llm.Trace); ok {
		out.injected = t.Injected()
		if args.IncludeTrace != nil && !*args.IncludeTrace {
			out.Trace = traceID{t.ID}
		}
	}
	if out.Degraded || out.Error != nil {
		return failure(out), nil
	}
	return result(out), nil
}

// ask asks the chain, with the text as it arrives for a caller who wants
// that. An answer that must match a schema is not shown in parts: it is not known to be
// one before its end, and no other model could be asked any more.
func (src Source) ask(ctx context.Context, req *llm.Request) (*llm.Response, error) {
	if tell := progress(ctx); tell != nil && len(req.Schema) == 0 {
		return src.LLM.Stream(ctx, req, tell)
	}
	return src.LLM.Complete(ctx, req)
}

// known tells whether a request can prefer a model by this name.
func known(s llm.Status, name string) bool {
	for entry, p := range s.Providers {
		if name == entry || name == p.Model || name == p.API || name == p.API+"/"+p.Model {
			return true
		}
	}
	return false
}

// completeInput is the schema of the arguments; it names what can be preferred.
func completeInput(chain *llm.Chain) json.RawMessage {
	model := "Provider or model to try first"
	if chain != nil {
		s := chain.Status()
		var names []string
		for _, name := range s.Chain {
			names = append(names, name+" ("+s.Providers[name].Model+")")
		}
		if names != nil {
			model += ": " + strings.Join(names, ", ")
		}
	}
	type property map[string]any
	raw, _ := json.Marshal(property{ // strings and numbers always encode
		"type": "object", "additionalProperties": false,
		"properties": property{
			"prompt": property{"type": "string", "description": "The question, if it is a single one; else messages"},
			"messages": property{
				"type": "array", "description": "The conversation instead of prompt, oldest first",
				"items": property{
					"type": "object", "required": []string{"role", "content"}, "additionalProperties": false,
					"properties": property{
						"role":    property{"type": "string", "enum": roles, "description": "Who says it"},
						"content": property{"type": "string", "description": "What is said"},
					},
				},
			},
			"system":          property{"type": "string", "description": "Instructions for the model"},
			"model":           property{"type": "string", "description": model + ". The others follow if it fails"},
			"temperature":     property{"type": "number", "minimum": 0, "maximum": 2, "description": "0 for the likeliest words, more for variety; the model's default if left out"},
			"max_tokens":      property{"type": "integer", "minimum": 1, "description": "Longest answer, in tokens; the model's default if left out"},
			"stop":            property{"type": "array", "items": property{"type": "string"}, "description": "The answer ends before any of these texts"},
			"response_schema": property{"type": "object", "description": "JSON schema: the text of the answer is JSON that matches it, else another model is asked"},
			"images":          property{"type": "array", "items": property{"type": "string"}, "description": "Images for prompt, or for the last message of the user: data: URLs in base64, or https: URLs, which only some models can take"},
			"timeout":         property{"type": "number", "exclusiveMinimum": 0, "description": "Seconds for the whole call, if shorter than the configured time"},
			"include_trace":   property{"type": "boolean", "default": true, "description": "false: of the trace only its id, which armor.status (section traces) takes"},
		},
	})
	return raw
}

// completeOutput is the schema of structuredContent.
var completeOutput = json.RawMessage(`{"type":"object","required":["text","degraded"],"properties":{` +
	`"text":{"type":"string","description":"The answer, or why there is none"},` +
	`"provider":{"type":"string","description":"Who answered"},` +
	`"model":{"type":"string","description":"The model that answered, as it calls itself"},` +
	`"degraded":{"type":"boolean","description":"No model could be reached: text is no answer"},` +
	`"finish_reason":{"type":"string","description":"Why the model stopped: stop, length (the text is cut), …"},` +
	`"usage":{"type":"object","properties":{"input_tokens":{"type":"integer"},"output_tokens":{"type":"integer"},"total_tokens":{"type":"integer"}}},` +
	`"trace":{"type":"object","required":["id"],"properties":{"id":{"type":"string"}},"description":"Every attempt: provider, outcome, times, and why the next one followed"},` +
	`"note":{"type":"string","description":"What was done otherwise than asked"},` +
	`"not_before":{"type":"string","format":"date-time","description":"With degraded: do not ask again before"},` +
	`"error":{"type":"object","required":["class"],"properties":{"class":{"type":"string"},"provider":{"type":"string"},"status":{"type":"integer"},"partial":{"type":"string","description":"What had arrived before the answer broke off"}}}}}`)
