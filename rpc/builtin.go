// SPDX-License-Identifier: Apache-2.0

package rpc

import "context"

// MethodInfo describes a method that an agent serves.
type MethodInfo struct {
	Name  string
	Types string // see [Method.Types]
}

// describeMethod asks an agent what it serves. Clients in other languages use it.
var describeMethod = NewMethod[struct{}, []MethodInfo]("cohort.rpc.describe")

// Describe returns the methods that the peer serves, sorted by name. Methods of this
// module are left out.
func (p *Peer) Describe(ctx context.Context) ([]MethodInfo, error) {
	return describeMethod.Call(ctx, p, struct{}{})
}

func (a *Agent) describe(context.Context, struct{}) ([]MethodInfo, error) {
	names := a.methodNames()
	a.mu.RLock()
	defer a.mu.RUnlock()
	list := make([]MethodInfo, len(names))
	for i, name := range names {
		list[i] = MethodInfo{name, a.methods[name].text}
	}
	return list, nil
}

// builtins are the methods that every agent serves.
func (a *Agent) builtins() []*served {
	var o options
	_ = Services( // none of which could be wrong
		ServeAsync(meetMethod, a.meet),
		Serve(describeMethod, a.describe),
		Serve(debugMethod, func(context.Context, struct{}) (DebugInfo, error) { return a.Debug(), nil }),
		Serve(missingMethod, func(context.Context, struct{}) ([]string, error) { return a.onMissing(), nil }),
	).apply(&o)
	return append(o.serves, fetching())
}
