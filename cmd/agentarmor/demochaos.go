package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// inject begins a fault.
func (d *demonstration) inject(ctx context.Context, spec map[string]any) (string, error) {
	var out struct{ Injected []injectedFault }
	if _, err := d.tool(ctx, "chaos.inject", spec, &out); err != nil {
		return "", err
	}
	if len(out.Injected) != 1 || len(out.Injected[0].Targets) == 0 {
		return "", errors.New("nothing was injected")
	}
	d.fault = out.Injected[0]
	return fmt.Sprintf("%s: %s on %s for %s at most", d.fault.ID, d.fault.Fault, d.fault.Target, d.fault.TTL), nil
}

// broken wants the one fault, with its two hits, to be listed.
func (d *demonstration) broken(ctx context.Context) (string, error) {
	var out chaosList
	if _, err := d.tool(ctx, "chaos.list", nil, &out); err != nil {
		return "", err
	}
	if len(out.Active) != 1 || out.Active[0].ID != d.fault.ID || out.Active[0].Hits != 2 {
		return "", fmt.Errorf("it lists %+v", out.Active)
	}
	one := out.Active[0]
	return fmt.Sprintf("%s: %s on %s, %s in %s, seed %d\nof %s: %s, …", one.ID, one.Fault, one.Target, count(one.Hits, "hit"), count(one.Calls, "call"), one.Seed,
		count(len(out.Targets), "target"), strings.Join(out.Targets[:min(4, len(out.Targets))], ", ")), nil
}

// clear ends the fault, which must have hit so many calls.
func (d *demonstration) clear(ctx context.Context, what string, hits int) (string, error) {
	var out struct {
		Cleared []injectedFault
		Active  int
	}
	if _, err := d.tool(ctx, "chaos.clear", map[string]any{"which": d.fault.ID}, &out); err != nil {
		return "", err
	}
	if len(out.Cleared) != 1 || out.Cleared[0].Hits != hits || out.Active != 0 {
		return "", fmt.Errorf("cleared are %+v, and %d go on", out.Cleared, out.Active)
	}
	return fmt.Sprintf("%s: %s has hit %s; %s active", d.fault.ID, what, count(hits, "call"), count(out.Active, "fault")), nil
}
