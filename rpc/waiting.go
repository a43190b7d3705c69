// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"
)

// missingMethod asks the agent of rank 0 who has not called Shutdown.
var missingMethod = NewMethod[struct{}, []string]("cohort.rpc.missing")

// waitingTime is after how long a Shutdown says what it waits for.
const waitingTime = 5 * time.Second

// tellWaiting says on standard error, if ctx is not done soon, what a shutdown waits
// for.
func (a *Agent) tellWaiting(ctx context.Context) {
	timer := time.NewTimer(waitingTime)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return
	}
	what := a.waitsFor(ctx)
	if ctx.Err() == nil {
		fmt.Fprintf(os.Stderr, "cohort: rpc agent %s: shutdown has been waiting for %v: %s\n", a.name, waitingTime, what)
	}
}

const mostNamed = 10

// openCalls names the calls that hold a shutdown up here, empty if there are none.
func (a *Agent) openCalls() string {
	var calls []string
	for _, c := range a.InFlight() {
		switch {
		case reserved(c.Method):
		case c.GivenUp:
			calls = append(calls, fmt.Sprintf("%s, called by %s, which has given it up, and not ended for %v", c.Method, c.Peer, c.Since.Round(time.Millisecond)))
		case c.Served:
			calls = append(calls, fmt.Sprintf("%s, called by %s", c.Method, c.Peer))
		default:
			calls = append(calls, fmt.Sprintf("%s at %s", c.Method, c.Peer))
		}
	}
	return some(calls, mostNamed)
}

func (a *Agent) waitsFor(ctx context.Context) string {
	if calls := a.openCalls(); calls != "" {
		return "calls are under way: " + calls
	}
	ctx, cancel := context.WithTimeout(ctx, helloTimeout)
	defer cancel()
	lead := a.PeerRank(0)
	names, err := missingMethod.Call(ctx, lead, struct{}{})
	switch {
	case err != nil:
		return fmt.Sprintf("%v, which knows who has not called it, does not answer: %v", lead, err)
	case len(names) == 0:
		return "all have called it, and not all of their calls have ended"
	}
	return "these have not called it, or have calls under way: " + some(names, mostNamed)
}

// some lists the first of names.
func some(names []string, most int) string {
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], "; "), len(names)-most)
	}
	return strings.Join(names, "; ")
}

// onMissing answers missingMethod.
func (a *Agent) onMissing() (names []string) {
	for _, p := range a.missing() {
		names = append(names, p.String())
	}
	return names
}
