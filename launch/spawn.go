// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/signal"
	"runtime/debug"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/internal/errorfile"
	"github.com/cohort-ml/cohort/tensor"
)

// spawnCalls counts the calls of Spawn in this process. It is a fact about the
// process, as its arguments are: a re-executed program finds the call that it
// was started for by counting.
var spawnCalls atomic.Int64

// Spawn runs main in n rank processes of this machine and waits for them; it is
// what multiprocessing's spawn is in Python, for a program's own main:
//
//	func main() {
//		launch.Exit(launch.Spawn(context.Background(), 2, train))
//	}
//
// The contract: each rank is this binary, started again with the same
// arguments, and its call of Spawn runs main and ends the process; so what comes
// before the call happens in every process, and what comes after it in the first
// alone. (Several calls have to come in the same order every time; a rank passes
// over the calls before its own, which return nil there.)
//
// A process that already is a rank, because the program was started by `cohort
// run`, starts no more of them: it runs main, and n is what the launcher says.
//
// The context of main is done when the rank gets SIGINT, SIGTERM, SIGHUP, or another
// one of Config.Signals but SIGQUIT; main then has the grace period to save what it
// wants and return. The context's cause is a [*StopError] that names the signal and,
// where there was one, the notice that the machine is to go:
//
//	<-ctx.Done()
//	if stop := (*launch.StopError)(nil); errors.As(context.Cause(ctx), &stop) && stop.Notice != "" {
//		… save until stop.Deadline …
//	}
//
// Beside multiprocessing's spawn:
//
//	mp.spawn(fn, args, nprocs)      Spawn(ctx, n, main)
//	the argument i of fn            RANK; Group.Rank with dist.Main
//	ProcessRaisedException          the *Error that Spawn returns: rank, message, where
//	ProcessExitedException          the same: exit code or signal
//	the others get SIGTERM          a second later, then SIGKILL after Grace
//	join=False                      go func() { … Spawn … }(), and ctx to end it
//	start_method, daemon            none: always new processes, which end with their parent
//
// What main needs it finds as the first process does: in arguments, environment and files.
//
// A rank whose main returns an error prints it and exits with
// code 1. Deferred calls of the functions around Spawn do not run in a rank.
//
// The errors are those of [Run].
func Spawn(ctx context.Context, n int, main func(ctx context.Context) error, opts ...SpawnOption) error {
	call := spawnCalls.Add(1)
	if envvar.Rank.IsSet() != envvar.WorldSize.IsSet() {
		set, missing := envvar.Rank, envvar.WorldSize
		if envvar.WorldSize.IsSet() {
			set, missing = missing, set
		}
		return badConfig("Env", "environment variable %s is set and %s is not: a rank has both, a program that is to start ranks has neither", set, missing)
	}
	if IsRank() {
		mine, err := envvar.Spawn.IntOr(1, 1, math.MaxInt32)
		if err != nil {
			return &ConfigError{Field: "Env", Err: err}
		}
		if int(call) < mine {
			return nil
		}
		os.Exit(runRank(ctx, main))
	}
	self, err := selfPath()
	if err != nil {
		return badConfig("Program", "find this program's own file: %w", err)
	}
	var o spawnOptions
	for _, opt := range opts {
		opt(&o)
	}
	cfg := o.cfg
	cfg.Program, cfg.Args, cfg.Direct, cfg.NumRanks = self, os.Args[1:], true, n
	cfg.argv0, cfg.spawnCall = os.Args[0], call
	return Run(ctx, cfg)
}

// IsRank says whether a launcher has started this process as a rank: Spawn then
// runs its main right here.
func IsRank() bool {
	return envvar.Rank.IsSet() && envvar.WorldSize.IsSet()
}

// runRank is the whole life of a rank of Spawn; it returns the exit code.
func runRank(ctx context.Context, main func(ctx context.Context) error) int {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	if more, err := ParseSignals(envvar.SignalsToHandle.Get("")); err == nil {
		for _, s := range more {
			if s != syscall.SIGQUIT { // prints where all goroutines are
				signal.Notify(ch, s)
			}
		}
	}
	go func() {
		s := <-ch
		// The agent decides how long a rank may take from here on: later signals
		// are not for this process to act on.
		cancel(newStopError(s.(syscall.Signal)))
	}()
	defer func() {
		if v := recover(); v != nil {
			var misuse *tensor.Error
			if err, ok := v.(error); ok && errors.As(err, &misuse) { // says where by itself
				Record(misuse, "")
				fmt.Fprintf(os.Stderr, "rank %s: %v\n", envvar.Rank.Get("?"), misuse)
				os.Exit(1)
			}
			Record(fmt.Errorf("panic: %v", v), string(debug.Stack()))
			// The message comes last: the job's report shows the last lines.
			fmt.Fprintf(os.Stderr, "%s\nrank %s panicked: %v\n", debug.Stack(), envvar.Rank.Get("?"), v)
			os.Exit(2)
		}
	}()
	if err := main(ctx); err != nil {
		Record(err, "")
		if repeated := (*errorfile.Repeated)(nil); !errors.As(err, &repeated) {
			fmt.Fprintf(os.Stderr, "%v\n", err)
		}
		return 1
	}
	return 0
}

// StopError is the cause of the context of a rank that is to save what it wants
// and end: context.Cause of the context that Spawn gives its main.
type StopError struct {
	Rank     int            // -1 where RANK says nothing
	Signal   syscall.Signal // that the rank got
	Notice   string         // why, where the launcher has had notice that the machine is to go; else empty
	Deadline time.Time      // of a notice: when the launcher kills ranks that are still there
}

func (e *StopError) Error() string {
	text := fmt.Sprintf("rank %d got %s", e.Rank, signalName(e.Signal))
	if e.Notice != "" {
		text += ": " + e.Notice
	}
	return text
}

// newStopError is the cause in a rank that has got a signal.
func newStopError(s syscall.Signal) *StopError {
	rank, err := envvar.Rank.IntOr(-1, 0, math.MaxInt32)
	if err != nil {
		rank = -1
	}
	n := readNotice(envvar.Notice.Get(""))
	return &StopError{Rank: rank, Signal: s, Notice: n.Notice, Deadline: n.Deadline}
}
