// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"cmp"
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

	"github.com/cohort-ml/cohort/internal/lobby"
)

const (
	// refusalPause is the least time between two reports of a port for one reason, but
	// for the second one, which tells soon whether more come.
	refusalPause = time.Minute
	secondPause  = time.Second
	// maxSources bounds the sources that a report names, maxCounted those that are told apart.
	maxSources = 4
	maxCounted = 1024
)

// These, and ErrNeedsTLS, are
// all that is said of a stranger: nothing of what a stranger sent gets into a log.
var (
	errNoWord    = lobby.ErrSilent
	errText      = errors.New("HTTP was spoken")
	errGarbage   = errors.New("it was no connection of a Cohort job")
	errVersion   = errors.New("another version of the handshake was spoken: the processes of a job need the same release of Cohort")
	errNoProof   = errors.New("the job's token was not proven: another job's process, started with this port's address, or a stranger")
	errSlow      = errors.New("the handshake was not finished in time")
	errCut       = errors.New("the connection ended within the handshake")
	errOtherUser = errors.New("it was another user's than the job's")
	errNoTrust   = errors.New("its certificate is not of this job")
	errRepeated  = errors.New("a hello of a member of the job was repeated")
)

// Refusals are connections that a port has turned away for one reason since the last
// report of that; or, where Held is true, that it holds: many have come and have not said
// yet who they are.
type Refusals struct {
	Held bool
	Addr string // the port's
	Num  int
	// Total is the number of all since the port was opened, whatever the reason; of those that
	// are held, those from the source that has most.
	Total int
	// From are the sources with the most, hosts or users of this one, four at most, and Others
	// how many more there are.
	From   []string
	Others int
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
	if r.Held {
		return fmt.Sprintf("holds %d connections to %s that have not said yet who they are, %d of them from %s: more than any job has; members go before them", r.Num, r.Addr, r.Total, from)
	}
	if r.Others > 0 {
		from += fmt.Sprintf(" and %d others", r.Others)
	}
	return fmt.Sprintf("turned away %s to %s from %s: %v", what, r.Addr, from, r.Why)
}

// refusals gathers what is to be reported.
type refusals struct {
	mu      sync.Mutex
	report  func(Refusals)
	total   int
	kinds   map[error]*refusalKind // by reason: a probe each second hides no wrong token
	due     []Refusals             // to be reported
	telling bool                   // somebody does
	told    sync.WaitGroup
}

// refusalKind is what is to be reported for one reason.
type refusalKind struct {
	next     time.Time // when there may be a report again
	reported bool
	num      int
	from     map[lobby.Source]int
}

// OnRefusal has the connections that are turned away reported: the first for each
// reason at once, others together, after a second and then once a minute at most, and the
// rest when the port is closed. So a log neither misses an attack nor drowns in it. The function is
// called by a goroutine of its own, one call at a time, and keeps nobody waiting.
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
func (r *refusals) add(addr string, from lobby.Source, why error, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.total++
	why = reasonOf(why)
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
		k.from = map[lobby.Source]int{}
	}
	if _, known := k.from[from]; known || len(k.from) < maxCounted {
		k.from[from]++
	}
	if now.Before(k.next) {
		return
	}
	r.tell(addr, why)
	pause := refusalPause
	if !k.reported {
		k.reported, pause = true, secondPause
	}
	k.next = now.Add(pause)
}

// crowd has connections that are held reported.
func (r *refusals) crowd(addr string, held int, most lobby.Source, of int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.enqueue(Refusals{Held: true, Addr: addr, Num: held, Total: of, From: []string{most.String()}})
}

// flush reports what has not been, and waits until all has.
func (r *refusals) flush(addr string) {
	r.mu.Lock()
	byText := func(a, b error) int { return strings.Compare(a.Error(), b.Error()) }
	for _, why := range slices.SortedFunc(maps.Keys(r.kinds), byText) {
		r.tell(addr, why)
	}
	r.mu.Unlock()
	r.told.Wait()
}

// tell has those of one reason reported. The caller has the lock, and does not wait: who
// reads the report may be slow.
func (r *refusals) tell(addr string, why error) {
	k := r.kinds[why]
	if k.num == 0 || r.report == nil {
		return
	}
	sources := slices.SortedFunc(maps.Keys(k.from), func(a, b lobby.Source) int {
		return cmp.Or(k.from[b]-k.from[a], strings.Compare(a.String(), b.String()))
	})
	told := Refusals{Addr: addr, Num: k.num, Total: r.total, Why: why, Others: max(0, len(sources)-maxSources)}
	for _, s := range sources[:len(sources)-told.Others] {
		told.From = append(told.From, s.String())
	}
	k.num, k.from = 0, nil
	r.enqueue(told)
}

// enqueue has a report made. The caller has the lock.
func (r *refusals) enqueue(told Refusals) {
	if r.report == nil {
		return
	}
	r.due = append(r.due, told)
	if !r.telling {
		r.telling = true
		r.told.Go(r.tellAll)
	}
}

// tellAll reports what is due.
func (r *refusals) tellAll() {
	for {
		r.mu.Lock()
		due, report := r.due, r.report
		r.due = nil
		r.telling = len(due) > 0
		r.mu.Unlock()
		if len(due) == 0 {
			return
		}
		for _, told := range due {
			report(told)
		}
	}
}

// reasonOf returns the text of this package for a reason of the lobby.
func reasonOf(why error) error {
	switch why {
	case lobby.ErrSlow:
		return errSlow
	case lobby.ErrCut:
		return errCut
	}
	return why
}

// whyRefused returns the fixed text for the error of a handshake, nil for
// what is no refusal: a member that asks for what is not offered (yet) is told so.
func whyRefused(err error) error {
	switch {
	case err == nil || errors.Is(err, ErrNoProtocol):
		return nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		return errSlow
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed), isReset(err):
		return errCut
	}
	for _, known := range []error{ErrNeedsTLS, errNoTrust, errVersion, errNoProof, errRepeated} {
		if errors.Is(err, known) {
			return known
		}
	}
	return errGarbage
}
