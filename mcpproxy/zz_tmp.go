package mcpproxy

import "github.com/agentarmor/agentarmor/mcpproxy/event"

func (p *Proxy) publish(e event.Event) { p.events.Publish(e) }
