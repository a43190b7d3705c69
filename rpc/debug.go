// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"net/http"
	"slices"
	"time"
)

// InFlight is a call that is under way.
type InFlight struct {
	Method string
	Peer   string
	Served bool // by this agent, else made by it
	Since  time.Duration
	// Left is how much time the call has, 0 for any.
	Left time.Duration
}

// InFlight returns the calls that are under way, the longest first: what this agent
// waits for, and what others wait for here.
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
	a.mu.RLock()
	defer a.mu.RUnlock()
	for l := range a.links {
		l.cmu.Lock()
		for _, c := range l.pending {
			add(c.method.name, l.peer.name, false, c.began, c.deadline)
		}
		for _, f := range l.streams {
			add(f.method.name, l.peer.name, false, f.began, time.Time{})
		}
		l.cmu.Unlock()
	}
	for s := range a.servers {
		s.cmu.Lock()
		for _, in := range s.active {
			add(in.method.name, s.peer.name, true, in.began, in.own.deadline)
		}
		s.cmu.Unlock()
	}
	slices.SortFunc(list, func(a, b InFlight) int { return int(b.Since - a.Since) })
	return list
}

// debugPage is what the debug page shows.
type debugPage struct {
	Agent, Addr string
	Time        time.Time
	Peers       []debugPeer
	InFlight    []InFlight
	Stats
}

type debugPeer struct {
	Name      string
	Rank      int
	Transport string
}

//go:embed debug.html
var debugText string

var debugTemplate = template.Must(template.New("debug").Funcs(template.FuncMap{
	"bytes": func(n uint64) string {
		for _, unit := range []string{"B", "KiB", "MiB", "GiB"} {
			if n < 10<<10 || unit == "GiB" {
				return fmt.Sprintf("%d %s", n, unit)
			}
			n >>= 10
		}
		return ""
	},
	"short": func(d time.Duration) string {
		if d > time.Second {
			return d.Round(10 * time.Millisecond).String()
		}
		return d.Round(time.Microsecond).String()
	},
}).Parse(debugText))

// maxShown bounds the calls in flight on the page.
const maxShown = 1000

// DebugHandler returns a page about the agent for people, and with ?format=json for
// programs: calls in flight, and for each method and peer calls, failures, bytes and
// latencies. It shows names, no values. Mount it where only those come who may see
// that:
//
//	go http.ListenAndServe("localhost:8080", a.DebugHandler())
func (a *Agent) DebugHandler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		page := debugPage{Agent: a.String(), Addr: a.Addr(), Time: time.Now(), InFlight: a.InFlight(), Stats: a.Stats()}
		page.InFlight = page.InFlight[:min(len(page.InFlight), maxShown)]
		for _, p := range a.Peers() {
			page.Peers = append(page.Peers, debugPeer{p.name, p.rank, p.Transport()})
		}
		// An error is a reader who has gone.
		if r.FormValue("format") == "json" {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(page)
		} else {
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			_ = debugTemplate.Execute(w, page)
		}
	})
}
