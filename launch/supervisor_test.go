// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/internal/seeded"
)

const (
	sigINT  = syscall.SIGINT
	sigTERM = syscall.SIGTERM
	sigKILL = syscall.SIGKILL
)

func (a tell) String() string    { return fmt.Sprintf("tell %d", a.ended.local) }
func (a deliver) String() string { return "deliver " + signalName(a.sig) }
func (a sweep) String() string {
	if a.sig == 0 {
		return "look"
	}
	return "sweep " + signalName(a.sig)
}
func (a finish) String() string { return fmt.Sprint("finish ", a.unkillable) }

// Each line of a script is an event at a time (in milliseconds), then what the
// machine has to do and the phase that it is then in.
func TestSupervisorScripts(t *testing.T) {
	ok := func(i int) event { return exited{local: i} }
	code := func(i, c int) event { return exited{local: i, code: c} }
	died := func(i int, s syscall.Signal) event { return exited{local: i, code: -1, sig: s} }
	type line struct {
		ms    int
		event event
		want  string
		phase phase
	}
	tests := []struct {
		name     string
		n        int
		script   []line
		failures string // local ranks, with a * when stopped
	}{
		{"nobody wants to wait", 2, []line{
			{0, cancelled{}, "deliver SIGTERM", stopping},
			{3, killAsked{}, "deliver SIGKILL", killing},
			{4, killAsked{}, "", killing},
			{5, died(0, sigKILL), "", killing},
			{5, died(1, sigKILL), "sweep SIGKILL", sweeping},
			{6, strays{0}, "finish []", done},
		}, "0* 1*"},
		{"the killed have much to give back", 2, []line{
			{0, cancelled{}, "deliver SIGTERM", stopping},
			{1, killAsked{}, "deliver SIGKILL", killing},
			{2, died(0, sigKILL), "", killing},
			{3000, reclaiming{}, "", killing}, // too early to be of interest
			{5001, reclaiming{}, "", killing},
			{5001, ticked{}, "", killing},
			{10001, reclaiming{}, "", killing},
			{12000, died(1, sigKILL), "sweep SIGKILL", sweeping},
			{12000, strays{1}, "", sweeping},
			{17000, reclaiming{}, "", sweeping},
			{17000, ticked{}, "sweep SIGKILL", sweeping},
			{17001, strays{0}, "finish []", done},
		}, "0* 1*"},
		{"who is killed does not end for ever", 1, []line{
			{0, cancelled{}, "deliver SIGTERM", stopping},
			{1, killAsked{}, "deliver SIGKILL", killing},
			{5001, reclaiming{}, "", killing},
			{600001, reclaiming{}, "", killing},
			{600001, ticked{}, "finish [0]", done},
		}, ""},
		{"all end well", 2, []line{
			{5, ok(1), "", running},
			{9, ok(0), "look", sweeping},
			{9, strays{0}, "finish []", done},
		}, ""},
		{"a failure, the other ends by itself", 2, []line{
			{100, died(1, sigKILL), "tell 1", failing},
			{400, code(0, 1), "look", sweeping},
			{400, strays{0}, "finish []", done},
		}, "1 0"},
		{"a failure, the other needs SIGTERM", 3, []line{
			{100, code(2, 7), "tell 2", failing},
			{300, ticked{}, "", failing},
			{1100, ticked{}, "deliver SIGTERM", stopping},
			{1150, died(0, sigTERM), "tell 0", stopping},
			{1160, ok(1), "look", sweeping},
			{1160, strays{0}, "finish []", done},
		}, "2 0*"},
		{"a failure, the other ignores SIGTERM", 2, []line{
			{0, code(0, 1), "tell 0", failing},
			{1000, ticked{}, "deliver SIGTERM", stopping},
			{30999, ticked{}, "", stopping},
			{31000, ticked{}, "deliver SIGKILL", killing},
			{31005, died(1, sigKILL), "sweep SIGKILL", sweeping},
			{31005, strays{0}, "finish []", done},
		}, "0 1*"},
		{"SIGINT, everybody obeys", 2, []line{
			{10, signalled{sigINT}, "deliver SIGINT", stopping},
			{20, died(0, sigINT), "tell 0", stopping},
			{30, ok(1), "look", sweeping},
			{30, strays{0}, "finish []", done},
		}, "0*"},
		{"a second SIGINT kills, unless it comes with the first", 2, []line{
			{10, signalled{sigINT}, "deliver SIGINT", stopping},
			{90, signalled{sigINT}, "", stopping},
			{600, signalled{sigINT}, "deliver SIGKILL", killing},
			{601, died(0, sigKILL), "", killing},
			{602, died(1, sigKILL), "sweep SIGKILL", sweeping},
			{602, strays{0}, "finish []", done},
		}, "0* 1*"},
		{"a second SIGTERM is passed on, and prolongs nothing", 1, []line{
			{0, signalled{sigTERM}, "deliver SIGTERM", stopping},
			{29000, signalled{sigTERM}, "deliver SIGTERM", stopping},
			{30000, ticked{}, "deliver SIGKILL", killing},
			{30001, died(0, sigKILL), "sweep SIGKILL", sweeping},
			{30001, strays{0}, "finish []", done},
		}, "0*"},
		{"the first SIGINT during a failure is not yet a hurry", 2, []line{
			{0, code(0, 1), "tell 0", failing},
			{500, signalled{sigINT}, "deliver SIGINT", stopping},
			{1000, signalled{sigINT}, "deliver SIGKILL", killing},
			{1001, died(1, sigKILL), "sweep SIGKILL", sweeping},
			{1001, strays{0}, "finish []", done},
		}, "0 1*"},
		{"a cancelled context and the SIGINT that cancelled it", 1, []line{
			{0, cancelled{}, "deliver SIGTERM", stopping},
			{1, signalled{sigINT}, "deliver SIGINT", stopping},
			{2, cancelled{}, "", stopping},
			{5, ok(0), "look", sweeping},
			{5, strays{0}, "finish []", done},
		}, ""},
		{"survivors go on", 3, []line{
			{0, died(2, sigKILL), "tell 2", running},
			{60000, ticked{}, "", running},
			{60000, ok(0), "", running},
			{60001, ok(1), "look", sweeping},
			{60001, strays{0}, "finish []", done},
		}, "2"},
		{"survivors, and one that is stopped", 3, []line{
			{0, code(1, 1), "tell 1", running},
			{50, ok(0), "", running},
			{50, onlyStopped{}, "deliver SIGTERM", stopping},
			{60, died(2, sigTERM), "look", sweeping},
			{60, strays{0}, "finish []", done},
		}, "1 2*"},
		{"strays that obey", 1, []line{
			{0, ok(0), "look", sweeping},
			{0, strays{2}, "sweep SIGTERM", sweeping},
			{0, strays{2}, "", sweeping},
			{5, ticked{}, "look", sweeping},
			{5, strays{1}, "", sweeping},
			{10, ticked{}, "look", sweeping},
			{10, strays{0}, "finish []", done},
		}, ""},
		{"strays that do not", 1, []line{
			{0, ok(0), "look", sweeping},
			{0, strays{1}, "sweep SIGTERM", sweeping},
			{0, strays{1}, "", sweeping},
			{1000, ticked{}, "sweep SIGKILL", sweeping},
			{1000, strays{1}, "", sweeping},
			{1005, ticked{}, "sweep SIGKILL", sweeping},
			{1005, strays{1}, "", sweeping},
			{6000, ticked{}, "finish []", done},
		}, ""},
		{"a signal during the sweep", 1, []line{
			{0, ok(0), "look", sweeping},
			{0, strays{1}, "sweep SIGTERM", sweeping},
			{0, strays{1}, "", sweeping},
			{3, signalled{sigTERM}, "sweep SIGKILL", sweeping},
			{3, strays{0}, "finish []", done},
		}, ""},
		{"a worker that SIGKILL does not end", 2, []line{
			{0, signalled{sigINT}, "deliver SIGINT", stopping},
			{500, signalled{sigINT}, "deliver SIGKILL", killing},
			{501, died(0, sigKILL), "", killing},
			{5500, ticked{}, "finish [1]", done},
			{5501, died(1, sigKILL), "", done},
		}, "0*"},
		{"the third rank cannot be started", 4, []line{
			{0, startFailed{2}, "deliver SIGKILL", killing},
			{1, died(0, sigKILL), "", killing},
			{1, died(1, sigKILL), "sweep SIGKILL", sweeping},
			{1, strays{0}, "finish []", done},
		}, "0* 1*"},
		{"no rank can be started", 2, []line{
			{0, startFailed{0}, "sweep SIGKILL", sweeping},
			{0, strays{0}, "finish []", done},
		}, ""},
		{"events that make no sense", 2, []line{
			{0, exited{local: 7}, "", running},
			{0, exited{local: -1}, "", running},
			{0, strays{3}, "", running},
			{0, ticked{}, "", running},
			{1, ok(0), "", running},
			{1, ok(0), "", running},
		}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := newSupervisor(tt.n, defaultPatience)
			m.survivors = strings.HasPrefix(tt.name, "survivors")
			start := time.Unix(1000, 0)
			for i, l := range tt.script {
				var got []string
				for _, a := range m.step(start.Add(time.Duration(l.ms)*time.Millisecond), l.event) {
					got = append(got, fmt.Sprint(a))
				}
				if s := strings.Join(got, ", "); s != l.want || m.phase != l.phase {
					t.Fatalf("line %d, %d ms, %T%v: did %q in phase %v, want %q in %v", i, l.ms, l.event, l.event, s, m.phase, l.want, l.phase)
				}
			}
			var got []string
			for _, f := range m.failures {
				got = append(got, fmt.Sprint(f.local)+strings.Repeat("*", map[bool]int{true: 1}[f.stopped]))
			}
			if s := strings.Join(got, " "); s != tt.failures {
				t.Errorf("failures %q, want %q", s, tt.failures)
			}
		})
	}
}

// simWorker is how a simulated worker takes signals; a delay of -1 is never.
type simWorker struct {
	local          int
	end            time.Duration // by itself
	code           int
	onTerm, onKill time.Duration
	onPeerFailure  time.Duration
	ended          bool
	endAt          time.Time
	endAs          exited
}

// TestSupervisorSimulated runs random histories: whatever the workers do, the job
// ends in bounded time, each is asked before it is killed, and all live ones
// hear of a failure.
func TestSupervisorSimulated(t *testing.T) {
	seed := seeded.Of(t)
	for run := range uint64(3000) {
		if !simulate(t, rand.New(rand.NewPCG(seed, run))) {
			t.Fatalf("seed %d, run %d", seed, run)
		}
	}
}

func simulate(t *testing.T, r *rand.Rand) bool {
	start := time.Unix(0, 0)
	now := start
	far := start.Add(1000 * time.Hour)
	pick := func(ds ...time.Duration) time.Duration { return ds[r.IntN(len(ds))] }
	n := 1 + r.IntN(6)
	ws := make([]*simWorker, n)
	unkillable := false
	for i := range ws {
		w := &simWorker{
			local: i, code: []int{0, 0, 1, 137}[r.IntN(4)],
			end:           pick(-1, 0, time.Millisecond, time.Second, time.Minute),
			onTerm:        pick(-1, 0, time.Second, 20*time.Second, 40*time.Second),
			onKill:        pick(0, 0, 0, 0, time.Millisecond, -1),
			onPeerFailure: pick(-1, 0, 500*time.Millisecond, 2*time.Second),
		}
		unkillable = unkillable || w.onKill < 0
		w.endAt = far
		if w.end >= 0 {
			w.endAt, w.endAs = start.Add(w.end), exited{local: i, code: w.code}
		}
		ws[i] = w
	}
	sooner := func(w *simWorker, d time.Duration, as exited) {
		if at := now.Add(d); d >= 0 && at.Before(w.endAt) {
			w.endAt, w.endAs = at, as
		}
	}
	signalAt := []time.Time{}
	for range r.IntN(3) {
		signalAt = append(signalAt, start.Add(time.Duration(r.Int64N(int64(2*time.Minute)))))
	}
	slices.SortFunc(signalAt, time.Time.Compare)
	numStrays, strayIgnores := r.IntN(3), r.IntN(2) == 0

	m := newSupervisor(n, defaultPatience)
	asked, killed, finished := false, false, false
	fail := func(format string, args ...any) bool {
		t.Errorf("at %v: "+format, append([]any{now.Sub(start)}, args...)...)
		return false
	}
	var do func(e event) bool
	do = func(e event) bool {
		if x, ok := e.(exited); ok {
			ws[x.local].ended = true
		}
		for _, a := range m.step(now, e) {
			if finished {
				return fail("%v after finish", a)
			}
			switch a := a.(type) {
			case tell:
				for _, w := range ws {
					if !w.ended {
						sooner(w, w.onPeerFailure, exited{local: w.local, code: 1})
					}
				}
			case deliver:
				if a.sig == sigKILL && !asked {
					return fail("SIGKILL to workers that were not asked")
				}
				asked = true
				killed = killed || a.sig == sigKILL
				for _, w := range ws {
					if w.ended {
						continue
					}
					d := w.onTerm
					if a.sig == sigKILL {
						d = w.onKill
					}
					sooner(w, d, exited{local: w.local, code: -1, sig: a.sig})
				}
			case sweep:
				for _, w := range ws {
					if !w.ended {
						return fail("sweep while worker %d runs", w.local)
					}
				}
				if a.sig == sigKILL || a.sig == sigTERM && !strayIgnores {
					numStrays = 0
				}
				if !do(strays{numStrays}) {
					return false
				}
			case finish:
				finished = true
				for _, w := range ws {
					if !w.ended && !slices.Contains(a.unkillable, w.local) {
						return fail("finished while worker %d runs", w.local)
					}
				}
				if len(a.unkillable) > 0 && !unkillable {
					return fail("gave up on %v", a.unkillable)
				}
			}
		}
		return true
	}
	for range 100000 {
		if finished {
			return numStrays == 0 || killed || fail("%d strays left", numStrays)
		}
		next, e := far, event(nil)
		for _, w := range ws {
			if !w.ended && w.endAt.Before(next) {
				next, e = w.endAt, w.endAs
			}
		}
		if len(signalAt) > 0 && signalAt[0].Before(next) {
			next, e = signalAt[0], signalled{[]syscall.Signal{sigINT, sigTERM}[r.IntN(2)]}
		}
		if w := m.wake(); !w.IsZero() && w.Before(next) {
			next, e = w, ticked{}
		}
		if e == nil {
			for _, w := range ws {
				if w.ended && w.endAs.code != 0 {
					return fail("nothing to wait for after a failure")
				}
			}
			return true // workers that run for ever, as they may
		}
		if _, ok := e.(signalled); ok {
			signalAt = signalAt[1:]
		}
		if next.After(now) {
			now = next
		}
		if !do(e) {
			return false
		}
	}
	return fail("no end")
}

// The time in which nobody could do anything is not of anybody's patience.
func TestSupervisorResumed(t *testing.T) {
	m := newSupervisor(2, defaultPatience)
	now := time.Now()
	m.step(now, signalled{syscall.SIGTERM})
	m.step(now.Add(time.Hour), resumed{time.Hour})
	if got := m.wake().Sub(now); got != time.Hour+defaultPatience.grace {
		t.Errorf("the grace period ends %v after the signal", got)
	}
	if acts := m.step(now.Add(time.Hour+time.Second), ticked{}); len(acts) > 0 {
		t.Errorf("%v within the grace period", acts)
	}
}
