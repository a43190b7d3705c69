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

// spawnCalls counts the calls of Spawn in this process. It belongs to the process, as the
// arguments do: a rank counts calls to find the one that it was started for.
var spawnCalls atomic.Int64

// Spawn runs main in n rank processes of this machine and waits for them. It is for a
// program's own main function, as multiprocessing's spawn is in Python:
//
//	func main() {
//		launch.Exit(launch.Spawn(context.Background(), 2, train))
//	}
//
// Each rank is this binary, started again with the same arguments. In a rank, the call of
// Spawn runs main and ends the process. So the code before the call runs in every process,
// and the code after it only in the first. A program may call Spawn several times, in the
// same order in every process; in a rank, the calls before its own return nil at once.
//
// If cohort run has started the program, each process is a rank already. Spawn then starts
// no processes: it runs main, and the launcher's number of ranks replaces n.
//
// The context of main is done when the rank gets SIGINT, SIGTERM, SIGHUP or another signal
// of Config.Signals, except SIGQUIT. From then on main has the grace period to save its
// work and return. The context's cause is a [*StopError]. It names the signal and, if there
// was one, the notice that the machine is about to go:
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
// A rank finds what it needs where the first process does: in arguments, environment and
// files. If main returns an error, the rank prints it and exits with code 1. Deferred calls
// of the functions around Spawn do not run in a rank.
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
	for i, opt := range opts {
		if opt == nil {
			return badConfig("Spawn", "option %d of %d is nil", i+1, len(opts))
		}
		opt(&o)
	}
	cfg := o.cfg
	cfg.Program, cfg.Args, cfg.Direct, cfg.NumRanks = self, os.Args[1:], true, n
	cfg.argv0, cfg.spawnCall = os.Args[0], call
	return Run(ctx, cfg)
}

// IsRank reports whether a launcher has started this process as a rank. Spawn then runs
// main in this process. Where COHORT_BACKEND is mpi, that launcher may be an MPI's.
func IsRank() bool {
	if envvar.Rank.IsSet() && envvar.WorldSize.IsSet() {
		return true
	}
	_, started := envvar.MPITask()
	return started && envvar.Backend.Get("") == "mpi"
}

// runRank runs main as a rank of Spawn and returns the exit code.
func runRank(ctx context.Context, main func(ctx context.Context) error) int {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	if more, err := ParseSignals(envvar.SignalsToHandle.Get("")); err == nil {
		for _, s := range more {
			if s != syscall.SIGQUIT { // the Go runtime prints all goroutines and exits
				signal.Notify(ch, s)
			}
		}
	}
	go func() {
		s := <-ch
		// From here on the agent decides how long the rank may take. This process does not
		// act on later signals.
		cancel(newStopError(s.(syscall.Signal)))
	}()
	defer func() {
		if v := recover(); v != nil {
			var misuse *tensor.Error
			if err, ok := v.(error); ok && errors.As(err, &misuse) { // it names the place by itself
				Record(misuse, "")
				fmt.Fprintf(os.Stderr, "rank %s: %v\n", envvar.Rank.Get("?"), misuse)
				os.Exit(1)
			}
			Record(fmt.Errorf("panic: %v", v), string(debug.Stack()))
			// The message comes last, because the job's report shows the last lines.
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

// StopError is the cause (context.Cause) of the context that Spawn gives to main, after
// the rank has got a signal: the rank should save its work and end.
type StopError struct {
	Rank     int            // -1 if RANK has no rank
	Signal   syscall.Signal // the signal that the rank got
	Notice   string         // the notice that the machine is about to go; empty if there was none
	Deadline time.Time      // with a notice: when the launcher kills the ranks that are left
}

func (e *StopError) Error() string {
	text := fmt.Sprintf("rank %d got %s", e.Rank, signalName(e.Signal))
	if e.Notice != "" {
		text += ": " + e.Notice
	}
	return text
}

// newStopError makes the error of a rank that has got a signal.
func newStopError(s syscall.Signal) *StopError {
	rank, err := envvar.Rank.IntOr(-1, 0, math.MaxInt32)
	if err != nil {
		rank = -1
	}
	n := readNotice(envvar.Notice.Get(""))
	return &StopError{Rank: rank, Signal: s, Notice: n.Notice, Deadline: n.Deadline}
}
