// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/internal/errorfile"
)

// runAlone makes the attempts of a job on one machine, until one ends well, no restart is
// left, or somebody stops the job.
func (h *Host) runAlone(ctx context.Context) error {
	for number := 0; ; number++ {
		port, release, err := h.masterPort()
		if err != nil {
			return err
		}
		err = h.Run(ctx, Attempt{Number: number, MasterAddr: h.cfg.MasterAddr, MasterPort: port, AgentStore: h.ServesStore()})
		release()
		var failed *Error
		if !errors.As(err, &failed) || !failed.Restartable() || number == h.cfg.MaxRestarts {
			return err
		}
		h.Restarting(failed, number+1)
	}
}

// Restarting prints the report of an attempt that has failed, and says that restart
// number n follows.
func (h *Host) Restarting(failed *Error, n int) {
	var b strings.Builder
	failed.Report(&b)
	fmt.Fprintf(&b, "cohort: restart %d of %d: starting all ranks again\n", n, h.cfg.MaxRestarts)
	_, _ = h.cfg.Stderr.Write([]byte(b.String()))
}

// Restartable reports whether another attempt may help: ranks have failed by themselves
// and may not fail again, nobody has stopped the job, and no process of it is left.
func (e *Error) Restartable() bool {
	return len(e.Failures) > 0 && !e.Final() && e.Signal == 0 && e.Cause == nil && e.StartErr == nil && len(e.Unkillable) == 0 && e.NumStrays == 0
}

// Final marks an error with which a rank would end again if it were started again:
// settings that make no sense, data that are not there, a checkpoint of another model.
// A launcher that gets such an error from a rank (see [Record]) makes no more attempts,
// however many [Config].MaxRestarts leaves. Package train marks its errors by itself.
// Final returns nil for nil.
func Final(err error) error {
	if err == nil {
		return nil
	}
	return &errorfile.Final{Err: err}
}

// finalCodes are the exit codes that mean the same as Final, for programs of any
// language. Those of sysexits.h mean that the command line (64), an input (66) or the
// configuration (78) cannot be used. Those of a shell mean that a command cannot be
// executed (126) or is not there (127).
var finalCodes = []int{64, 66, 78, 126, 127}

// usageCode is the exit code that flag, argparse and click have for a bad command line.
// A Go program that crashes has the same code; its standard error tells the two apart.
const usageCode = 2

// isFinal reports whether a rank would end in the same way again, to judge by how it
// ended.
func (f *Failure) isFinal(printedUsage bool) bool {
	switch {
	case f.Signal != 0 || f.Stopped:
		return false
	case f.Code == usageCode && printedUsage && f.Callstack == "":
		return true
	}
	return slices.Contains(finalCodes, f.Code) || f.python != ""
}

// final returns the first failure that would happen again; nil if there is none.
func (e *Error) final() *Failure {
	i := slices.IndexFunc(e.Failures, func(f Failure) bool { return f.Final && !f.Stopped })
	if i < 0 {
		return nil
	}
	return &e.Failures[i]
}

// Final reports whether another attempt would end as this one did. A rank says so by its
// error ([Final]), or by its exit code: 64, 66, 78, 126, 127, or 2 after it has printed
// its usage.
func (e *Error) Final() bool { return e.final() != nil }

// notAgain says why the restarts that are left are of no use.
func (e *Error) notAgain() string {
	f := e.final()
	if f == nil || e.restartsLeft == 0 {
		return ""
	}
	left := "1 restart that is left is not used"
	if e.restartsLeft > 1 {
		left = fmt.Sprintf("%d restarts that are left are not used", e.restartsLeft)
	}
	return fmt.Sprintf("the %s: rank %d would end in the same way again", left, f.Rank)
}

// isUsage reports whether a line of standard error begins to explain a command line.
func isUsage(line []byte) bool {
	const word = "usage"
	return len(line) > len(word) && strings.EqualFold(string(line[:len(word)]), word) && strings.ContainsRune(": ", rune(line[len(word)]))
}
