package llm

import (
	"cmp"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/agentarmor/agentarmor/fixtures/fakellm"
)

// fault is an answer as it was seen in the wild, and what is made of it.
type fault struct {
	name   string
	status int
	header string // "Name: value", one or two of them separated by |
	body   string
	class  Class
	code   string
	delay  time.Duration // asked for; -1: none
	next   string        // what the chain does: "retry", "next entry", or that after a rest
}

// gemini429 is the shape of Gemini's quota errors: violations, help, delay.
func gemini429(quota, delay string) string {
	return `{"error":{"code":429,"message":"You exceeded your current quota, please check your plan and billing details.\n* Quota exceeded for metric: generativelanguage.googleapis.com/generate_content_free_tier_requests, limit: 15\nPlease retry in 34.074824224s.","status":"RESOURCE_EXHAUSTED","details":[
	{"@type":"type.googleapis.com/google.rpc.QuotaFailure","violations":[{"quotaMetric":"generativelanguage.googleapis.com/generate_content_free_tier_requests",` + quota + `"quotaDimensions":{"location":"global","model":"gemini-2.5-flash"}}]},
	{"@type":"type.googleapis.com/google.rpc.Help","links":[{"description":"Learn more","url":"https://ai.google.dev/gemini-api/docs/rate-limits"}]}` + delay + `]}}`
}

func retryInfo(delay string) string {
	return `,{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":` + delay + `}`
}

func geminiError(status int, rpc, message, details string) string {
	return fmt.Sprintf(`{"error":{"code":%d,"message":%q,"status":%q,"details":[%s]}}`, status, message, rpc, details)
}

func errorInfo(reason string) string {
	return `{"@type":"type.googleapis.com/google.rpc.ErrorInfo","reason":"` + reason + `","domain":"googleapis.com"}`
}

const html502 = "<!DOCTYPE html>\n<html><head><title>Error 502 (Server Error)!!1</title></head><body><p><b>502.</b> That’s an error.</body></html>"

const s = time.Second

var geminiFaults = []fault{
	// 429 (FACTS C and F, case 24)
	{"per minute", 429, "", gemini429(`"quotaId":"GenerateRequestsPerMinutePerProjectPerModel-FreeTier","quotaValue":"15",`, retryInfo(`"34.07s"`)), ClassThrottled, "RESOURCE_EXHAUSTED", 34070 * time.Millisecond, "retry after a rest (throttled)"},
	{"nine digits", 429, "", gemini429(`"quotaId":"GenerateContentInputTokensPerModelPerMinute-FreeTier",`, retryInfo(`"45.837906927s"`)), ClassThrottled, "RESOURCE_EXHAUSTED", 45837906927, "retry after a rest (throttled)"},
	{"delay as an object", 429, "", gemini429(`"quotaId":"GenerateRequestsPerMinutePerProjectPerModel",`, retryInfo(`{"seconds":34,"nanos":70000000}`)), ClassThrottled, "RESOURCE_EXHAUSTED", 34070 * time.Millisecond, "retry after a rest (throttled)"},
	{"per day", 429, "", gemini429(`"quotaId":"GenerateRequestsPerDayPerProjectPerModel-FreeTier","quotaValue":"250",`, retryInfo(`"34.07s"`)), ClassQuota, "RESOURCE_EXHAUSTED", time.Hour, "next entry after a rest (quota)"},
	{"limit 0", 429, "", gemini429(`"quotaId":"GenerateRequestsPerMinutePerProjectPerModel-FreeTier","quotaValue":"0",`, retryInfo(`"12s"`)), ClassQuota, "RESOURCE_EXHAUSTED", time.Hour, "next entry after a rest (quota)"},
	{"delay in words alone", 429, "", gemini429(`"quotaId":"GenerateRequestsPerMinutePerProjectPerModel",`, ""), ClassThrottled, "RESOURCE_EXHAUSTED", 34074824224, "retry after a rest (throttled)"},
	{"no details", 429, "", geminiError(429, "RESOURCE_EXHAUSTED", "Resource has been exhausted (e.g. check quota).", ""), ClassThrottled, "RESOURCE_EXHAUSTED", -1, "retry after a rest (throttled)"},
	{"as an array, of a stream", 429, "", "[" + geminiError(429, "RESOURCE_EXHAUSTED", "Resource exhausted. Please try again later.", "") + "]", ClassThrottled, "RESOURCE_EXHAUSTED", -1, "retry after a rest (throttled)"},
	{"a proxy's page", 429, "Retry-After: 7", "<html><body>Too Many Requests</body></html>", ClassThrottled, "", 7 * s, "retry after a rest (throttled)"},
	{"header before body", 429, "Retry-After: 3", gemini429(`"quotaId":"GenerateRequestsPerMinutePerProjectPerModel",`, retryInfo(`"34s"`)), ClassThrottled, "RESOURCE_EXHAUSTED", 3 * s, "retry after a rest (throttled)"},
	{"absurd delay", 429, "", gemini429(`"quotaId":"PerMinute",`, retryInfo(`"999999.5s"`)), ClassThrottled, "RESOURCE_EXHAUSTED", MaxRetryAfter, "retry after a rest (throttled)"},
	// The service
	{"overloaded", 503, "", geminiError(503, "UNAVAILABLE", "The model is overloaded. Please try again later.", ""), ClassOverloaded, "UNAVAILABLE", -1, "retry"},
	{"overloaded, for a while", 503, "Retry-After: 20", geminiError(503, "UNAVAILABLE", "This model is currently experiencing high demand.", ""), ClassOverloaded, "UNAVAILABLE", 20 * s, "retry after a rest (throttled)"},
	{"internal", 500, "", geminiError(500, "INTERNAL", "An internal error has occurred. Please retry or report in https://developers.generativeai.google/guide/troubleshooting", ""), ClassOverloaded, "INTERNAL", -1, "retry"},
	{"deadline", 504, "", geminiError(504, "DEADLINE_EXCEEDED", "Deadline expired before operation could complete.", ""), ClassOverloaded, "DEADLINE_EXCEEDED", -1, "retry"},
	{"a page of Google's", 502, "", html502, ClassOverloaded, "", -1, "retry"},
	// The model
	{"model never was", 404, "", geminiError(404, "NOT_FOUND", "models/gemini-1.5-flash is not found for API version v1beta, or is not supported for generateContent.", ""), ClassGone, "NOT_FOUND", -1, "next entry after a rest (gone)"},
	{"model retired", 404, "", geminiError(404, "NOT_FOUND", "This model models/gemini-2.5-flash is no longer available. Please update your code to use a newer model.", ""), ClassGone, "NOT_FOUND", -1, "next entry after a rest (gone)"},
	{"wrong address", 404, "", "<html><title>Error 404 (Not Found)!!1</title></html>", ClassRejected, "", -1, "next entry"},
	// The key
	{"key invalid", 400, "", geminiError(400, "INVALID_ARGUMENT", "API key not valid. Please pass a valid API key.", errorInfo("API_KEY_INVALID")), ClassAuth, "INVALID_ARGUMENT", -1, "next entry after a rest (auth)"},
	{"key expired", 400, "", geminiError(400, "INVALID_ARGUMENT", "API key expired. Please renew the API key.", errorInfo("API_KEY_INVALID")), ClassAuth, "INVALID_ARGUMENT", -1, "next entry after a rest (auth)"},
	{"no key", 403, "", geminiError(403, "PERMISSION_DENIED", "Method doesn't allow unregistered callers.", ""), ClassAuth, "PERMISSION_DENIED", -1, "next entry after a rest (auth)"},
	{"service disabled", 403, "", geminiError(403, "PERMISSION_DENIED", "Generative Language API has not been used in project 1 before or it is disabled.", errorInfo("SERVICE_DISABLED")), ClassAuth, "PERMISSION_DENIED", -1, "next entry after a rest (auth)"},
	{"unauthenticated", 401, "", geminiError(401, "UNAUTHENTICATED", "Request had invalid authentication credentials.", errorInfo("ACCESS_TOKEN_TYPE_UNSUPPORTED")), ClassAuth, "UNAUTHENTICATED", -1, "next entry after a rest (auth)"},
	// The request
	{"wrong country", 400, "", geminiError(400, "FAILED_PRECONDITION", "User location is not supported for the API use.", ""), ClassRejected, "FAILED_PRECONDITION", -1, "next entry"},
	{"too many tokens", 400, "", geminiError(400, "INVALID_ARGUMENT", "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).", ""), ClassRejected, "INVALID_ARGUMENT", -1, "next entry"},
	{"signature missing", 400, "", geminiError(400, "INVALID_ARGUMENT", "Function call is missing a thought_signature in functionCall parts.", ""), ClassRejected, "INVALID_ARGUMENT", -1, "next entry"},
	{"too large", 413, "", "<html><title>413 Request Entity Too Large</title></html>", ClassRejected, "", -1, "next entry"},
	// A 200 that is none
	{"no candidates", 200, "", `{"candidates":[],"usageMetadata":{"promptTokenCount":4}}`, ClassEmpty, "", -1, "next entry"},
	{"nothing", 200, "", `{}`, ClassEmpty, "", -1, "next entry"},
	{"prompt blocked", 200, "", `{"promptFeedback":{"blockReason":"PROHIBITED_CONTENT"},"usageMetadata":{"promptTokenCount":9}}`, ClassBlocked, "", -1, "next entry"},
	{"prompt blocked, newly", 200, "", `{"promptFeedback":{"blockReason":"SOMETHING_NEW"}}`, ClassBlocked, "", -1, "next entry"},
	{"answer blocked", 200, "", `{"candidates":[{"finishReason":"SAFETY","index":0,"safetyRatings":[{"category":"HARM_CATEGORY_HARASSMENT","probability":"HIGH","blocked":true}]}]}`, ClassBlocked, "", -1, "next entry"},
	{"recitation", 200, "", `{"candidates":[{"content":{},"finishReason":4,"index":0}]}`, ClassBlocked, "", -1, "next entry"},
	{"thoughts took it all", 200, "", `{"candidates":[{"content":{"role":"model"},"finishReason":"MAX_TOKENS","index":0}],"usageMetadata":{"promptTokenCount":9,"thoughtsTokenCount":1024,"totalTokenCount":1033}}`, ClassCut, "", -1, "next entry"},
	{"malformed call", 200, "", `{"candidates":[{"content":{},"finishReason":"MALFORMED_FUNCTION_CALL","finishMessage":"Malformed function call: print(","index":0}]}`, ClassEmpty, "", -1, "next entry"},
	{"error in a 200", 200, "", geminiError(503, "UNAVAILABLE", "The model is overloaded.", ""), ClassOverloaded, "UNAVAILABLE", -1, "retry"},
	{"a login page", 200, "Content-Type: text/html", "<html>Log in to the guest network</html>", ClassMalformed, "", -1, "next entry"},
	{"half an answer", 200, "", `{"candidates":[{"content":{"parts":[{"text":"Hel`, ClassLost, "", -1, "retry"},
}

func openAIError(message, kind, code string) string {
	return fmt.Sprintf(`{"error":{"message":%q,"type":%q,"param":null,"code":%q}}`, message, kind, code)
}

const tpm = "Rate limit reached for model `llama-3.1-8b-instant` in organization `org_x` service tier `on_demand` on tokens per minute (TPM): Limit 6000, Used 5800, Requested 730. Please try again in 5.289s."

var openAIFaults = []fault{
	// 429 (FACTS D and F, case 25)
	{"tokens per minute", 429, "Retry-After: 6", openAIError(tpm, "tokens", "rate_limit_exceeded"), ClassThrottled, "rate_limit_exceeded", 6 * s, "retry after a rest (throttled)"},
	{"delay in words alone", 429, "", openAIError(tpm, "tokens", "rate_limit_exceeded"), ClassThrottled, "rate_limit_exceeded", 5289 * time.Millisecond, "retry after a rest (throttled)"},
	{"tokens per day", 429, "Retry-After: 432", openAIError("Rate limit reached for model `x` on tokens per day (TPD): Limit 100000, Used 99500, Requested 1000. Please try again in 7m12s.", "tokens", "rate_limit_exceeded"), ClassThrottled, "rate_limit_exceeded", 432 * s, "retry after a rest (throttled)"},
	{"minutes in words", 429, "", openAIError("Rate limit reached. Please try again in 7m12s.", "tokens", "rate_limit_exceeded"), ClassThrottled, "rate_limit_exceeded", 432 * s, "retry after a rest (throttled)"},
	{"requests used up", 429, "X-Ratelimit-Remaining-Requests: 0|X-Ratelimit-Reset-Requests: 2m59.56s", openAIError("Rate limit reached", "requests", "rate_limit_exceeded"), ClassThrottled, "rate_limit_exceeded", 179560 * time.Millisecond, "retry after a rest (throttled)"},
	{"milliseconds", 429, "Retry-After-Ms: 1500|Retry-After: 2", openAIError("Requests have exceeded the call rate limit.", "", "429"), ClassThrottled, "", 1500 * time.Millisecond, "retry after a rest (throttled)"},
	{"a date", 429, "Retry-After: Mon, 30 Nov 2026 12:00:09 GMT|Date: Mon, 30 Nov 2026 12:00:00 GMT", "", ClassThrottled, "", 9 * s, "retry after a rest (throttled)"},
	{"a fraction", 429, "Retry-After: 0.5", "", ClassThrottled, "", 500 * time.Millisecond, "retry after a rest (throttled)"},
	{"twenty nines", 429, "Retry-After: 99999999999999999999", "", ClassThrottled, "", MaxRetryAfter, "retry after a rest (throttled)"},
	{"below zero", 429, "Retry-After: -1", "", ClassThrottled, "", 0, "retry"},
	{"OpenAI's requests", 429, "", openAIError("Rate limit reached for gpt-4o in organization org-x on requests per min (RPM): Limit 3, Used 3, Requested 1. Please try again in 20s.", "requests", "rate_limit_exceeded"), ClassThrottled, "rate_limit_exceeded", 20 * s, "retry after a rest (throttled)"},
	{"nothing paid for", 429, "", openAIError("You exceeded your current quota, please check your plan and billing details.", "insufficient_quota", "insufficient_quota"), ClassQuota, "insufficient_quota", time.Hour, "next entry after a rest (quota)"},
	{"balance", 402, "", openAIError("Insufficient Balance", "unknown_error", "invalid_request_error"), ClassQuota, "invalid_request_error", time.Hour, "next entry after a rest (quota)"},
	// The request
	{"larger than the limit", 413, "", openAIError("Request too large for model `openai/gpt-oss-20b` on tokens per minute (TPM): Limit 8000, Requested 12000, please reduce your message size and try again.", "tokens", "rate_limit_exceeded"), ClassRejected, "rate_limit_exceeded", -1, "next entry"},
	{"context", 400, "", openAIError("Please reduce the length of the messages or completion.", "invalid_request_error", "context_length_exceeded"), ClassRejected, "context_length_exceeded", -1, "next entry"},
	{"semantics", 422, "", openAIError("Unprocessable Entity", "invalid_request_error", ""), ClassRejected, "invalid_request_error", -1, "next entry"},
	{"dependency", 424, "", openAIError("Failed Dependency", "invalid_request_error", ""), ClassRejected, "invalid_request_error", -1, "next entry"},
	{"filter", 400, "", openAIError("The response was filtered due to the prompt triggering Azure OpenAI's content management policy.", "", "content_filter"), ClassBlocked, "content_filter", -1, "next entry"},
	// What the model wrote
	{"tool call", 400, "", `{"error":{"message":"Failed to call a function. Please adjust your prompt.","type":"invalid_request_error","code":"tool_use_failed","failed_generation":"<function=f>{</function>"}}`, ClassSchema, "tool_use_failed", -1, "next entry"},
	{"JSON", 400, "", `{"error":{"message":"Failed to validate JSON.","type":"invalid_request_error","code":"json_validate_failed","failed_generation":"{\"a\":"}}`, ClassSchema, "json_validate_failed", -1, "next entry"},
	// The model
	{"model gone", 404, "", openAIError("The model `llama-3.1-8b-instant` does not exist or you do not have access to it.", "invalid_request_error", "model_not_found"), ClassGone, "model_not_found", -1, "next entry after a rest (gone)"},
	{"model decommissioned", 400, "", openAIError("The model `gemma-7b-it` has been decommissioned and is no longer supported.", "invalid_request_error", "model_decommissioned"), ClassGone, "model_decommissioned", -1, "next entry after a rest (gone)"},
	{"vLLM's unknown model", 404, "", `{"object":"error","message":"The model 'x' does not exist.","type":"NotFoundError","param":null,"code":404}`, ClassRejected, "", -1, "next entry"},
	// The key
	{"key invalid", 401, "", openAIError("Invalid API Key", "invalid_request_error", "invalid_api_key"), ClassAuth, "invalid_api_key", -1, "next entry after a rest (auth)"},
	{"a firewall", 403, "", "<html><title>Attention Required! | Cloudflare</title></html>", ClassAuth, "", -1, "next entry after a rest (auth)"},
	// The service
	{"capacity", 498, "", openAIError("Flex tier capacity exceeded", "server_error", "capacity_exceeded"), ClassOverloaded, "capacity_exceeded", -1, "retry"},
	{"internal", 500, "", openAIError("Internal Server Error", "internal_server_error", ""), ClassOverloaded, "internal_server_error", -1, "retry"},
	{"error as a text", 500, "", `{"error":"llama runner process has terminated"}`, ClassOverloaded, "", -1, "retry"},
	{"error without a message", 503, "", `{"error":{"type":"overloaded"}}`, ClassOverloaded, "overloaded", -1, "retry"},
	{"bad gateway", 502, "", html502, ClassOverloaded, "", -1, "retry"},
	{"a mesh", 503, "Content-Type: text/plain", "upstream connect error or disconnect/reset before headers. reset reason: overflow", ClassOverloaded, "", -1, "retry"},
	{"request timeout", 408, "", "", ClassOverloaded, "", -1, "retry"},
	{"edge timeout", 524, "", "error code: 524", ClassOverloaded, "", -1, "retry"},
	{"529", 529, "", `{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}`, ClassOverloaded, "overloaded_error", -1, "retry"},
	// A 200 that is none
	{"error in a 200", 200, "", `{"error":{"message":"Provider returned error","code":502,"metadata":{"provider_name":"x"}}}`, ClassOverloaded, "", -1, "retry"},
	{"nothing", 200, "", `{}`, ClassMalformed, "", -1, "next entry"},
	{"no choices", 200, "", `{"id":"x","object":"chat.completion","choices":[]}`, ClassEmpty, "", -1, "next entry"},
	{"null", 200, "", `{"choices":[{"index":0,"message":{"role":"assistant","content":null},"finish_reason":"stop"}]}`, ClassEmpty, "", -1, "next entry"},
	{"cut", 200, "", `{"choices":[{"index":0,"message":{"role":"assistant","content":""},"finish_reason":"length"}],"usage":{"completion_tokens":64}}`, ClassCut, "", -1, "next entry"},
	{"refusal", 200, "", `{"choices":[{"index":0,"message":{"role":"assistant","content":null,"refusal":"I cannot help with that."},"finish_reason":"stop"}]}`, ClassBlocked, "", -1, "next entry"},
	{"a login page", 200, "Content-Type: text/html", "<html>Log in to the guest network</html>", ClassMalformed, "", -1, "next entry"},
	{"half an answer", 200, "", `{"choices":[{"index":0,"message":{"content":"Hel`, ClassLost, "", -1, "retry"},
}

// Each error body goes through the real client library of its API.
func TestFaults(t *testing.T) {
	for i, list := range [][]fault{geminiFaults, openAIFaults} {
		a := apis[i]
		p, server := a.start(t, "m", fakellm.Options{})
		for _, f := range list {
			t.Run(a.name+"/"+f.name, func(t *testing.T) {
				before := len(server.Requests())
				server.Script(fakellm.Reply{Status: f.status, Header: parseHeader(f.header), Body: cmp.Or(f.body, " ")})
				r := Prompt("hi")
				resp, _, err := ask(t, p, r, false)
				if err == nil {
					class, why := (&question{Request: *r}).judge(resp)
					err = newError(class, "%s", why)
					err.Status, err.Header = resp.Status, resp.Header
				}
				if n := len(server.Requests()) - before; n != 1 {
					t.Errorf("%d requests were sent for one call", n)
				}
				if err.Class != f.class || err.Code != f.code || err.RetryAfter != f.delay || err.Status != f.status {
					t.Errorf("class %s, code %q, delay %v, status %d: %s", err.Class, err.Code, err.RetryAfter, err.Status, err.Message)
				}
				if next := nextStep(err); next != f.next {
					t.Errorf("next: %s instead of %s", next, f.next)
				}
				if err.Header.Get("Date") == "" || f.status >= 300 && string(err.Body) != cmp.Or(f.body, " ") {
					t.Errorf("headers or body are lost: %v %s", err.Header, err.Body)
				}
			})
		}
	}
	if n := len(geminiFaults) + len(openAIFaults); n < 60 {
		t.Errorf("only %d faults", n)
	}
}

// TestFaultsKeepKeys has every fault repeat the key that it was sent.
func TestFaultsKeepKeys(t *testing.T) {
	for i, list := range [][]fault{geminiFaults, openAIFaults} {
		a := apis[i]
		p, server := a.start(t, "m", fakellm.Options{})
		for _, f := range list {
			t.Run(a.name+"/"+f.name, func(t *testing.T) {
				reply := fakellm.Reply{Status: f.status, Header: parseHeader(f.header)}
				reply.Header.Set("X-Echo", "you sent "+testKey)
				reply.Body = cmp.Or(strings.NewReplacer(`"message":"`, `"message":"`+testKey+` `, "<html>", "<html>"+testKey).Replace(f.body), testKey)
				server.Script(reply, reply)
				said := tell(t, []Entry{{Provider: p}, {Provider: NewFake("fallback")}}, Prompt("hi"))
				if noKey(t, said); !strings.Contains(said, "you sent") && !strings.Contains(said, "[redacted]") {
					t.Error("the echo was not heard")
				}
			})
		}
	}
}

// nextStep is what the chain's tables say about an error.
func nextStep(e *Error) string {
	next := "next entry"
	if e.Class.Transient() {
		next = "retry"
	}
	if skip, d := coolDown(e, time.Second); d > 0 {
		next += " after a rest (" + string(skip) + ")"
	}
	return next
}

func parseHeader(s string) http.Header {
	h := http.Header{}
	for line := range strings.SplitSeq(s, "|") {
		if name, value, found := strings.Cut(line, ": "); found {
			h.Set(name, value)
		}
	}
	return h
}
