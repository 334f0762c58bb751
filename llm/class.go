package llm

import "github.com/agentarmor/agentarmor/health"

// Class is how one attempt ended.
type Class string

// The classes. What follows from each is in one table, in class.go.
const (
	ClassOK         Class = "ok"
	ClassOverloaded Class = "overloaded" // 408, 498, 5xx
	ClassThrottled  Class = "throttled"  // 429
	ClassTimeout    Class = "timeout"    // the entry's own, or its share of the chain's
	ClassLost       Class = "lost"       // the connection or stream broke
	ClassNotSent    Class = "not_sent"   // no connection could be made
	ClassMalformed  Class = "malformed"  // an answer that is not the API's
	ClassQuota      Class = "quota"      // used up for the day or not paid for: 402, 429
	ClassAuth       Class = "auth"       // 401, 403, an invalid key
	ClassGone       Class = "gone"       // the model does not exist any more
	ClassRejected   Class = "rejected"   // the request itself: any other 4xx
	ClassEmpty      Class = "empty"      // an answer with nothing in it
	ClassBlocked    Class = "blocked"    // by a content filter
	ClassCut        Class = "cut"        // out of tokens
	ClassSchema     Class = "schema"     // the answer does not match the schema
	ClassCancelled  Class = "cancelled"  // the caller left
	ClassBudget     Class = "budget"     // the time for the whole chain is spent
	ClassNone       Class = "no_entry"   // the chain is empty
)

// meaning is what follows from a class.
type meaning struct {
	retry   bool           // the same entry may be asked again
	breaker health.Verdict // what it says about whether the provider works
	bad     bool           // counts as an error in the window of the health strategy
	outage  bool           // asking later may help
}

// classes is the table of everything a class means to the chain.
var classes = map[Class]meaning{
	ClassOK:         {breaker: health.Success},
	ClassOverloaded: {retry: true, breaker: health.Failure, bad: true, outage: true},
	ClassThrottled:  {retry: true, breaker: health.Neutral, bad: true, outage: true},
	ClassTimeout:    {retry: true, breaker: health.Failure, bad: true, outage: true},
	ClassLost:       {retry: true, breaker: health.Failure, bad: true, outage: true},
	ClassNotSent:    {retry: true, breaker: health.Failure, bad: true, outage: true},
	ClassMalformed:  {breaker: health.Failure, bad: true, outage: true},
	ClassQuota:      {breaker: health.Neutral, bad: true, outage: true},
	ClassAuth:       {breaker: health.Neutral, bad: true},
	ClassGone:       {breaker: health.Neutral},
	ClassRejected:   {breaker: health.Success},
	ClassEmpty:      {breaker: health.Neutral, bad: true},
	ClassBlocked:    {breaker: health.Success},
	ClassCut:        {breaker: health.Success},
	ClassSchema:     {breaker: health.Neutral, bad: true},
	ClassCancelled:  {breaker: health.Neutral},
	ClassBudget:     {breaker: health.Neutral, outage: true},
}

// Transient tells whether the same entry may be asked again after this class.
func (c Class) Transient() bool { return classes[c].retry }
