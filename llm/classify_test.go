package llm

import (
	"net/http"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// TestHTTPError holds the class and delay of error bodies as those send them
// who imitate OpenAI's API or stand before one. TestFaults has the APIs' own.
func TestHTTPError(t *testing.T) {
	const (
		html = "<!DOCTYPE html>\n<html><head><title>502 Bad Gateway</title></head><body><center><h1>try again in 5s</h1></center></body></html>"
		none = time.Duration(-1)
	)
	oai := func(message, typ, code string) string {
		return `{"error":{"message":"` + message + `","type":"` + typ + `","code":` + code + `}}`
	}
	head := func(kv ...string) http.Header {
		h := http.Header{}
		for i := 0; i < len(kv); i += 2 {
			h.Set(kv[i], kv[i+1])
		}
		return h
	}
	for _, tt := range []struct {
		name   string
		status int
		header http.Header
		body   string
		class  Class
		code   string
		delay  time.Duration
	}{
		// OpenAI and those who imitate it
		{"milliseconds", 429, head("Retry-After-Ms", "1250", "Retry-After", "2"), oai("m", "requests", "null"), ClassThrottled, "requests", 1250 * time.Millisecond},
		{"content policy", 400, nil, oai("m", "image_generation_user_error", `"content_policy_violation"`), ClassBlocked, "content_policy_violation", none},
		{"overloaded at Anthropic", 529, nil, `{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}`, ClassOverloaded, "overloaded_error", none},
		{"Ollama's missing model", 404, nil, `{"error":{"message":"model \"x\" not found, try pulling it first","type":"api_error","param":null,"code":null}}`, ClassRejected, "api_error", none},
		{"vLLM's bare object", 400, nil, `{"object":"error","message":"bad","type":"BadRequestError","code":400}`, ClassRejected, "", none},
		{"FastAPI's detail", 422, nil, `{"detail":"field required"}`, ClassRejected, "", none},
		{"status as a number", 429, head("Retry-After", "1"), `{"error":{"code":429,"status":429,"message":"m"}}`, ClassThrottled, "", time.Second},
		{"error in a 200", 200, nil, `{"error":{"message":"Provider returned error","code":502}}`, ClassOverloaded, "", none},
		{"rate limit in a 200", 200, nil, `{"error":{"message":"m","code":429}}`, ClassThrottled, "", none},
		{"a code in a 200", 200, nil, oai("m", "invalid_request_error", `"model_not_found"`), ClassGone, "model_not_found", none},
		{"capacity in a 200", 200, nil, oai("m", "server_error", `"capacity_exceeded"`), ClassOverloaded, "capacity_exceeded", none},
		{"rate limit by name in a 200", 200, nil, oai("Please try again in 2s.", "tokens", `"rate_limit_exceeded"`), ClassThrottled, "rate_limit_exceeded", 2 * time.Second},
		{"type in a 200", 200, nil, oai("m", "server_error", "null"), ClassOverloaded, "server_error", none},
		{"overloaded at Anthropic in a 200", 200, nil, `{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}`, ClassOverloaded, "overloaded_error", none},
		{"a number that is no status in a 200", 200, nil, oai("m", "", "1305"), ClassMalformed, "", none},
		// What stands before them
		{"proxy's page", 502, nil, html, ClassOverloaded, "", none},
		{"HTML in a 429", 429, head("Retry-After", "30"), html, ClassThrottled, "", 30 * time.Second},
		{"Cloudflare", 524, nil, "error code: 524", ClassOverloaded, "", none},
		{"redirect", 302, nil, "", ClassMalformed, "", none},
		{"text that lies", 400, nil, oai("429 rate limit, 503 overloaded, model_not_found", "", "null"), ClassRejected, "", none},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := HTTPError(tt.status, tt.header, []byte(tt.body))
			if e.Class != tt.class || e.RetryAfter != tt.delay || e.Code != tt.code {
				t.Errorf("%s %q after %s, want %s %q after %s", e.Class, e.Code, e.RetryAfter, tt.class, tt.code, tt.delay)
			}
			if e.Status != tt.status || string(e.Body) != tt.body || len(e.Message) > maxMessage || strings.Contains(e.Message, "\n") {
				t.Errorf("%+v", e)
			}
		})
	}
}

// TestWrongAddress holds that an answer of something else than the API has the
// address looked at, and is not taken for a model that is gone.
func TestWrongAddress(t *testing.T) {
	page := http.Header{"Content-Type": {"text/html; charset=utf-8"}}
	for _, tt := range []struct {
		status  int
		header  http.Header
		body    string
		class   Class
		message string
	}{
		{404, page, "<html>nothing here</html>", ClassRejected, "check base_url (is its /v1 missing?) and the model: Not Found"},
		{404, nil, `{"detail":"Not Found"}`, ClassRejected, "check base_url (is its /v1 missing?) and the model: Not Found"},
		{404, nil, `{"error":{"message":"m","code":"model_not_found"}}`, ClassGone, "m"},
		{200, page, "welcome", ClassMalformed, "an HTML page instead of an answer: check base_url"},
		{200, nil, "\n<!DOCTYPE html><html>", ClassMalformed, "an HTML page instead of an answer: check base_url"},
		{502, page, "<html>", ClassOverloaded, "Bad Gateway"},
	} {
		if e := HTTPError(tt.status, tt.header, []byte(tt.body)); e.Class != tt.class || e.Message != tt.message {
			t.Errorf("%d %s: %s, %q", tt.status, tt.body, e.Class, e.Message)
		}
	}
}

func TestRedact(t *testing.T) {
	e := HTTPError(401, http.Header{"X-Echo": {"key s3cret"}}, []byte(`{"error":{"message":"Incorrect key: s3cret"}}`)).Redact("", "s3cret")
	if e.Err = nil; strings.Contains(e.Error()+string(e.Body)+e.Header.Get("X-Echo"), "s3cret") || e.Message != "Incorrect key: [redacted]" {
		t.Errorf("%+v", e)
	}
}

func TestShorten(t *testing.T) {
	for _, s := range []string{"a\n\n b", strings.Repeat("é", 4000), "\xff\xfe", strings.Repeat("x", 298) + "é€"} {
		if got := shorten(s); len(got) > maxMessage || strings.Contains(got, "\n") || !utf8.ValidString(got) {
			t.Errorf("%q", got)
		}
	}
	if got := shorten("a\n\n b"); got != "a b" {
		t.Errorf("%q", got)
	}
}

// A 200 that is no answer does not say OK.
func TestUnreadableAnswerIsNotOK(t *testing.T) {
	if e := HTTPError(200, nil, []byte(`\x00{"candi`)); e.Class != ClassMalformed || e.Message != "the answer is not the API's" {
		t.Errorf("%+v", e)
	}
}
