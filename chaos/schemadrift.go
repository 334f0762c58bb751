package chaos

import (
	"encoding/json"
	"math/rand/v2"
)

// DriftArgument is the argument that tools suddenly require under schema_drift.
const DriftArgument = "drift"

// schemaDrift changes an interface without notice: the tools that match
// require one more argument in the server's next list; every member of a
// provider's answer has another name.
var schemaDrift = kind{
	about: "tools require a new argument; a provider's answer has other names",
	ops:   []Op{ToolList},
	start: func(s Spec) func(*rand.Rand, Call) Decision {
		return func(_ *rand.Rand, c Call) Decision {
			change := renamed
			if !c.provider() {
				change = func(b []byte) []byte { return drifted(b, s.Target, c.Target) }
			}
			return Decision{Action: Transform, Change: change}
		}
	},
}

// drifted changes the tools of a tools/list result that the pattern matches.
// What it cannot read stays as it is.
func drifted(result []byte, pattern, server string) []byte {
	var list map[string]json.RawMessage
	var tools []map[string]json.RawMessage
	if json.Unmarshal(result, &list) != nil || json.Unmarshal(list["tools"], &tools) != nil {
		return result
	}
	for _, tool := range tools {
		var name string
		_ = json.Unmarshal(tool["name"], &name)
		if matches(pattern, server) || matches(pattern, server+"/"+name) {
			drift(tool)
		}
	}
	list["tools"], _ = json.Marshal(tools) // raw messages that were read
	out, _ := json.Marshal(list)
	return out
}

// drift adds a required argument to the schema of a tool.
func drift(tool map[string]json.RawMessage) {
	var schema map[string]any
	if json.Unmarshal(tool["inputSchema"], &schema) != nil || schema == nil {
		return
	}
	properties, _ := schema["properties"].(map[string]any)
	if properties == nil {
		properties = map[string]any{}
	}
	properties[DriftArgument] = map[string]any{"type": "string"}
	required, _ := schema["required"].([]any)
	schema["properties"], schema["required"] = properties, append(required, DriftArgument)
	tool["inputSchema"], _ = json.Marshal(schema) // as it was read
}

// renamed gives every member of an object, or of those in an array, another name.
func renamed(answer []byte) []byte {
	var list []json.RawMessage
	if json.Unmarshal(answer, &list) == nil {
		for i := range list {
			list[i] = renamed(list[i])
		}
		out, _ := json.Marshal(list) // raw messages that were read
		return out
	}
	var members map[string]json.RawMessage
	if json.Unmarshal(answer, &members) != nil {
		return answer
	}
	other := map[string]json.RawMessage{}
	for name, value := range members {
		other[name+"_v2"] = value
	}
	out, _ := json.Marshal(other) // raw messages that were read
	return out
}
