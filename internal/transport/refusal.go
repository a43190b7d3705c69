// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// refusalPause is the least time between two reports of a port for one reason.
const refusalPause = time.Minute

// maxSources bounds the sources that a report names.
const maxSources = 4

// These, and ErrNeedsTLS, are
// all that is said of a stranger: nothing of what a stranger sent gets into a log.
var (
	errNoWord    = errors.New("nothing was said, as by a port scan")
	errText      = errors.New("HTTP was spoken")
	errGarbage   = errors.New("it was no connection of a Cohort job")
	errVersion   = errors.New("another version of the handshake was spoken: the processes of a job need the same release of Cohort")
	errNoProof   = errors.New("the job's token was not proven: another job's process, started with this port's address, or a stranger")
	errCrowded   = errors.New("there were more handshakes at once than are allowed")
	errSlow      = errors.New("the handshake was not finished in time")
	errCut       = errors.New("the connection ended within the handshake")
	errOtherUser = errors.New("it was another user's than the job's")
	errNoTrust   = errors.New("its certificate is not of this job")
	errRepeated  = errors.New("somebody repeated what a member of the job had said")
)

// Refusals are connections that a port has turned away for one reason since the last
// report of that.
type Refusals struct {
	Addr string // the port's
	Num  int
	// Total is the number of all since the port was opened, whatever the reason.
	Total int
	// From are the sources, hosts or users of this one, four at most.
	From []string
	// Why is the reason, one of a few fixed texts.
	Why error
}

// String is one line: `turned away 3 connections to 10.0.0.1:29500 from 10.0.0.9: text was sent, such as HTTP`.
func (r Refusals) String() string {
	what := "a connection"
	if r.Num > 1 {
		what = fmt.Sprintf("%d connections", r.Num)
	}
	from := strings.Join(r.From, ", ")
	if len(r.From) == maxSources {
		from += " and perhaps others"
	}
	return fmt.Sprintf("turned away %s to %s from %s: %v", what, r.Addr, from, r.Why)
}

// refusals gathers what is to be reported.
type refusals struct {
	mu     sync.Mutex
	report func(Refusals)
	total  int
	kinds  map[error]*refusalKind // by reason: a probe each second hides no wrong token
}

// refusalKind is what is to be reported for one reason.
type refusalKind struct {
	next time.Time // when there may be a report again
	num  int
	from map[string]struct{}
}

// OnRefusal has the connections that are turned away reported: the first for each
// reason at once, others together, once a minute at most, and the rest when the port is
// closed. So a log neither misses an attack nor drowns in it. The function is
// called by the goroutines of handshakes, one at a time.
func (p *Port) OnRefusal(report func(Refusals)) {
	p.refused.mu.Lock()
	defer p.refused.mu.Unlock()
	p.refused.report = report
}

// Refused returns how many connections the port has turned away.
func (p *Port) Refused() int {
	p.refused.mu.Lock()
	defer p.refused.mu.Unlock()
	return p.refused.total
}

// add counts a connection that was turned away.
func (r *refusals) add(addr, from string, why error, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.total++
	k := r.kinds[why]
	if k == nil {
		k = &refusalKind{}
		if r.kinds == nil {
			r.kinds = map[error]*refusalKind{}
		}
		r.kinds[why] = k
	}
	k.num++
	if k.from == nil {
		k.from = map[string]struct{}{}
	}
	if len(k.from) < maxSources {
		k.from[from] = struct{}{}
	}
	if !now.Before(k.next) {
		r.tell(addr, why)
		k.next = now.Add(refusalPause)
	}
}

// flush reports what has not been.
func (r *refusals) flush(addr string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	byText := func(a, b error) int { return strings.Compare(a.Error(), b.Error()) }
	for _, why := range slices.SortedFunc(maps.Keys(r.kinds), byText) {
		r.tell(addr, why)
	}
}

// tell reports those of one reason. The caller has the lock.
func (r *refusals) tell(addr string, why error) {
	k := r.kinds[why]
	if k.num == 0 || r.report == nil {
		return
	}
	r.report(Refusals{Addr: addr, Num: k.num, Total: r.total, From: slices.Sorted(maps.Keys(k.from)), Why: why})
	k.num, k.from = 0, nil
}

// whyRefused returns the fixed text for the error of a handshake, nil for
// what is no refusal: a member that asks for what is not offered (yet) is told so.
func whyRefused(err error, evicted bool) error {
	switch {
	case err == nil || errors.Is(err, ErrNoProtocol):
		return nil
	case evicted:
		return errCrowded
	case errors.Is(err, os.ErrDeadlineExceeded):
		return errSlow
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed), isReset(err):
		return errCut
	}
	for _, known := range []error{ErrNeedsTLS, errNoTrust, errNoWord, errText, errPyTorch, errVersion, errNoProof, errRepeated} {
		if errors.Is(err, known) {
			return known
		}
	}
	return errGarbage
}
