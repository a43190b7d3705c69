// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/cohort-ml/cohort/rpc/internal/link"
)

// InFlight is a call that is under way.
type InFlight struct {
	Method string
	Peer   string
	Served bool // by this agent, else made by it
	// GivenUp says that nobody waits for it any more: its time is over, or its caller has
	// canceled it or gone. The handler goes on, or the call is still in the queue.
	GivenUp bool
	Since   time.Duration
	// Left is how much time the call has, 0 for any.
	Left time.Duration
}

// InFlight returns the calls that are under way, the longest first: those that this agent
// waits for, and those that others wait for here.
func (a *Agent) InFlight() []InFlight {
	now := time.Now()
	var list []InFlight
	add := func(method, peer string, served bool, began, deadline time.Time) {
		c := InFlight{Method: method, Peer: peer, Served: served, Since: now.Sub(began)}
		if !deadline.IsZero() {
			c.Left = max(deadline.Sub(now), 1)
		}
		list = append(list, c)
	}
	for _, c := range a.end.Clients() {
		c.Waiting(func(call *link.Call) {
			add(call.Method, c.Peer.Name, false, call.Began, call.Deadline)
		}, func(s link.Stream) {
			f := s.(*flow)
			add(f.method.name, c.Peer.Name, false, f.began, time.Time{})
		})
	}
	for _, s := range a.end.Servers() {
		s := s.(*server)
		s.mu.Lock()
		for _, in := range s.active {
			add(in.method.name, s.peer.name, true, in.began, in.own.deadline)
		}
		s.mu.Unlock()
	}
	a.abandoned.mu.Lock()
	for in := range a.abandoned.calls {
		list = append(list, InFlight{Method: in.method.name, Peer: in.caller.name, Served: true, GivenUp: true, Since: now.Sub(in.began)})
	}
	a.abandoned.mu.Unlock()
	slices.SortFunc(list, func(a, b InFlight) int { return int(b.Since - a.Since) })
	return list
}

// DebugInfo is the state of an agent, for people and programs that look for a fault.
type DebugInfo struct {
	Agent    string
	Addr     string // for TCP, empty if it does not listen there
	Time     time.Time
	Peers    []DebugPeer
	InFlight []InFlight // the longest first
	Unlisted int        // calls in flight that InFlight leaves out
	// References to values here and elsewhere, see [Agent.References].
	References References
	Stats
}

// DebugPeer is a member of the job as an agent sees it.
type DebugPeer struct {
	Name      string
	Rank      int
	Transport string // see [Peer.Transport]
	Addr      string // where it listens, "" if that is not known
}

// debugMethod asks an agent about itself.
var debugMethod = NewMethod[struct{}, DebugInfo]("cohort.rpc.debug")

// maxShown bounds the calls in flight that are listed.
const maxShown = 1000

// Debug returns the state that [Agent.DebugHandler] shows.
func (a *Agent) Debug() DebugInfo {
	info := DebugInfo{Agent: a.String(), Addr: a.Addr(), Time: time.Now(), InFlight: a.InFlight(), References: a.References(), Stats: a.Stats()}
	info.InFlight = slices.DeleteFunc(info.InFlight, func(c InFlight) bool { return c.Method == debugMethod.name }) // the call that asks
	if more := len(info.InFlight) - maxShown; more > 0 {
		info.InFlight, info.Unlisted = info.InFlight[:maxShown], more
	}
	for _, p := range a.Peers() {
		info.Peers = append(info.Peers, DebugPeer{p.name, p.rank, p.Transport(), p.link.Addr()})
	}
	return info
}

// DebugOf asks the agent at an address for its state. The address is host:port or
// unix:name. The process that asks need not be an agent of the job. token is the job's; ""
// means that of COHORT_TOKEN. The command cohort rpc show uses it.
func DebugOf(ctx context.Context, addr, token string) (DebugInfo, error) {
	var opts []Option
	if token != "" {
		opts = append(opts, WithToken(token))
	}
	a, err := Init(ctx, "visitor-"+link.NewID(), opts...)
	if err != nil {
		return DebugInfo{}, err
	}
	defer a.Close()
	p, err := a.Visit(ctx, addr)
	if err != nil {
		return DebugInfo{}, fmt.Errorf("debug of %s: %w", addr, err)
	}
	return debugMethod.Call(ctx, p, struct{}{})
}

// SocketPrefix begins the names of the sockets at which agents on Linux listen for agents
// of their host. The command cohort rpc show --pid looks for it.
const SocketPrefix = link.SocketPrefix

// sizeText writes a number of bytes.
func sizeText(n uint64) string {
	for _, unit := range []string{"B", "KiB", "MiB"} {
		if n < 10<<10 {
			return fmt.Sprintf("%d %s", n, unit)
		}
		n >>= 10
	}
	return fmt.Sprintf("%d GiB", n)
}

// timeText writes a time with the digits that are worth it.
func timeText(d time.Duration) string {
	if d > time.Second {
		return d.Round(10 * time.Millisecond).String()
	}
	return d.Round(time.Microsecond).String()
}

// DebugHandler returns an HTTP handler that shows the agent's state as a page, or with
// ?format=json as JSON: calls in flight, and for each method and peer the calls, failures,
// bytes and latencies. It shows names and no values. The command cohort rpc show prints
// the same without HTTP ([DebugOf]). Do not serve the page to strangers:
//
//	go http.ListenAndServe("localhost:8080", a.DebugHandler())
func (a *Agent) DebugHandler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		page := a.Debug()
		// An error means that the reader has gone.
		if r.FormValue("format") == "json" {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(page)
		} else {
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			_, _ = debugPage(page).WriteTo(w)
		}
	})
}
