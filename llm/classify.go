package llm

import (
	"bytes"
	"cmp"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// HTTPError returns the error of an HTTP answer that is none: a status other
// than 2xx, or a 2xx whose body reports an error or is not the API's. It knows
// the documented error bodies of Gemini and of OpenAI and those who imitate it;
// only status codes and documented codes decide the class, never a text.
func HTTPError(status int, header http.Header, body []byte) *Error {
	body = body[:min(len(body), maxBody)]
	b := parseBody(body)
	e := &Error{Status: status, Header: header, Body: body, Code: b.code, Message: shorten(b.message)}
	switch {
	case e.Message == "" && status/100 == 2:
		e.Message = "the answer is not the API's"
	case e.Message == "":
		e.Message = shorten(http.StatusText(status))
	}
	if b.message == "" && status/100 == 2 && isHTML(header, body) {
		e.Message = "an HTML page instead of an answer: check base_url"
	}
	if status < 400 { // an error inside a 200
		status = cmp.Or(b.status, statuses[b.code], status)
	}
	e.Class = classify(status, b)
	if e.Class == ClassRejected && e.Status == http.StatusNotFound {
		e.Message = shorten(notFoundHint + e.Message)
	}
	e.RetryAfter = retryAfter(header, b, time.Now())
	if e.Class == ClassQuota {
		e.RetryAfter = quotaCoolDown
	}
	return e
}

// notFoundHint goes with a 404 that does not say that it is about the model.
const notFoundHint = "check base_url (is its /v1 missing?) and the model: "

func isHTML(h http.Header, body []byte) bool {
	return strings.HasPrefix(header(h, "content-type"), "text/html") || bytes.HasPrefix(bytes.TrimSpace(body), []byte("<"))
}

// quotaCoolDown is how long an entry rests whose quota of the day is used up,
// whatever delay the answer names: it names that of the minute.
const quotaCoolDown = time.Hour

// classify is the table from status and documented code to class.
func classify(status int, b errorBody) Class {
	if c, ok := codes[b.code]; ok {
		return c
	}
	switch {
	case status == http.StatusTooManyRequests && b.daily, status == http.StatusPaymentRequired:
		return ClassQuota
	case status == http.StatusTooManyRequests:
		return ClassThrottled
	case status == http.StatusRequestTimeout, status == 498, status >= 500:
		return ClassOverloaded
	case status == http.StatusUnauthorized, status == http.StatusForbidden, b.badKey:
		return ClassAuth
	case status == http.StatusNotFound && b.rpc == "NOT_FOUND":
		return ClassGone // Gemini's only 404: the model
	case status >= 400:
		return ClassRejected
	}
	return ClassMalformed
}

// codes are the documented values of error.code and error.type that say more
// than the status they come with.
var codes = map[string]Class{
	"model_not_found":          ClassGone, // OpenAI, Groq
	"model_decommissioned":     ClassGone, // Groq
	"invalid_api_key":          ClassAuth,
	"insufficient_quota":       ClassQuota,   // OpenAI: nothing is paid for
	"content_filter":           ClassBlocked, // Azure OpenAI
	"content_policy_violation": ClassBlocked, // OpenAI
	"json_validate_failed":     ClassSchema,  // Groq: the model's text is not the JSON that was asked for
	"tool_use_failed":          ClassSchema,  // Groq: the model's tool call does not fit the tool
	"capacity_exceeded":        ClassOverloaded,
}

// statuses are those of documented codes that come within a 200, above all in
// the midst of a stream. With a status of its own, a code says nothing new.
var statuses = map[string]int{
	"rate_limit_exceeded":   429,
	"server_error":          500, // OpenAI
	"internal_server_error": 500, // Groq
	"overloaded_error":      529, // Anthropic
	"invalid_request_error": 400,
}

// errorBody is what is read of an error's body. The zero value is a body
// without meaning, HTML for instance.
type errorBody struct {
	status     int    // error.code, where that is the number of an HTTP error
	code       string // error.code, where that is a text; else a known error.type, else rpc
	rpc        string // error.status: the name of a google.rpc.Code
	message    string
	retryDelay json.RawMessage // google.rpc.RetryInfo
	daily      bool            // google.rpc.QuotaFailure of a day, or of a limit of 0
	badKey     bool            // google.rpc.ErrorInfo API_KEY_INVALID
}

// wireError is an error of either API.
type wireError struct {
	Message string          `json:"message"`
	Type    string          `json:"type"`
	Code    json.RawMessage `json:"code"`
	Status  string          `json:"status"`
	Details []struct {
		Type       string          `json:"@type"`
		Reason     string          `json:"reason"`
		RetryDelay json.RawMessage `json:"retryDelay"`
		Violations []struct {
			QuotaID    string          `json:"quotaId"`
			QuotaValue json.RawMessage `json:"quotaValue"`
		} `json:"violations"`
	} `json:"details"`
}

// parseBody reads {"error": {…}}, {"error": "text"}, an array of one such
// (Gemini's streams), and the bare object that some servers send.
func parseBody(body []byte) errorBody {
	var list []json.RawMessage
	if json.Unmarshal(body, &list) == nil && len(list) > 0 {
		body = list[0]
	}
	var outer struct {
		Error   json.RawMessage `json:"error"`
		Message string          `json:"message"`
		Detail  json.RawMessage `json:"detail"`
	}
	if json.Unmarshal(body, &outer) != nil {
		return errorBody{}
	}
	var w wireError
	switch {
	case len(outer.Error) > 0 && outer.Error[0] == '{':
		_ = json.Unmarshal(outer.Error, &w) // a field of another type leaves the rest readable
	case len(outer.Error) > 0:
		_ = json.Unmarshal(outer.Error, &w.Message)
	default:
		w.Message = outer.Message
		_ = json.Unmarshal(outer.Detail, &w.Message)
	}
	return w.read()
}

func (w wireError) read() errorBody {
	b := errorBody{message: w.Message, rpc: w.Status}
	if n, err := strconv.Atoi(strings.Trim(string(w.Code), `"`)); err == nil {
		if n >= 400 && n <= 599 {
			b.status = n
		}
	} else {
		_ = json.Unmarshal(w.Code, &b.code)
	}
	if b.code == "" {
		b.code = w.Status
	}
	if _, known := codes[w.Type]; b.code == "" || known {
		b.code = w.Type
	}
	for _, d := range w.Details {
		switch d.Type[strings.LastIndexByte(d.Type, '.')+1:] {
		case "RetryInfo":
			b.retryDelay = d.RetryDelay
		case "ErrorInfo":
			b.badKey = b.badKey || d.Reason == "API_KEY_INVALID"
		case "QuotaFailure":
			for _, v := range d.Violations {
				b.daily = b.daily || strings.Contains(v.QuotaID, "PerDay") || strings.Trim(string(v.QuotaValue), `"`) == "0"
			}
		}
	}
	return b
}
