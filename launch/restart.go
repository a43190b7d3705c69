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

// runAlone makes the attempts of a job on one machine: until one ends well, or
// restarts have been used up, or somebody wants the job to end.
func (h *Host) runAlone(ctx context.Context) error {
	for number := 0; ; number++ {
		port := h.cfg.MasterPort
		if port == 0 {
			var err error
			if port, err = FreePort(h.cfg.MasterAddr); err != nil {
				return &ConfigError{Field: "MasterAddr", Err: err}
			}
		}
		err := h.Run(ctx, Attempt{Number: number, MasterAddr: h.cfg.MasterAddr, MasterPort: port, AgentStore: h.ServesStore()})
		var failed *Error
		if !errors.As(err, &failed) || !failed.Restartable() || number == h.cfg.MaxRestarts {
			return err
		}
		h.Restarting(failed, number+1)
	}
}

// Restarting tells the person at the terminal of an attempt that has failed and
// is followed by another one, which is restart number n.
func (h *Host) Restarting(failed *Error, n int) {
	var b strings.Builder
	failed.Report(&b)
	fmt.Fprintf(&b, "cohort: restart %d of %d: starting all ranks again\n", n, h.cfg.MaxRestarts)
	_, _ = h.cfg.Stderr.Write([]byte(b.String()))
}

// Restartable reports whether another attempt may help: ranks have failed by
// themselves and might not again, nobody wanted the job to end, and nothing of them is left.
func (e *Error) Restartable() bool {
	return len(e.Failures) > 0 && !e.Final() && e.Signal == 0 && e.Cause == nil && e.StartErr == nil && len(e.Unkillable) == 0 && e.NumStrays == 0
}

// Final marks an error that a rank would end with again if it were started again,
// whatever else happens: settings that make no sense, data that are not there, a
// checkpoint of another model. A launcher that gets it from a rank (see [Record])
// makes no more attempts, however many [Config].MaxRestarts leaves. Package train marks
// its own. It returns nil for nil.
func Final(err error) error {
	if err == nil {
		return nil
	}
	return &errorfile.Final{Err: err}
}

// Exit codes that mean the same, for programs of any language: those of sysexits.h for
// a command line, an input and a configuration that cannot be used, and those of a
// shell for a command that cannot be executed or is not there.
var finalCodes = []int{64, 66, 78, 126, 127}

// usageCode is the exit code of a command line that makes no sense, as flag, argparse
// and click end. It is also that of a Go program that crashes: text tells them apart.
const usageCode = 2

// isFinal reports whether a rank would end so again, by what it has said and how it ended.
func (f *Failure) isFinal(printedUsage bool) bool {
	switch {
	case f.Signal != 0 || f.Stopped:
		return false
	case f.Code == usageCode && printedUsage && f.Callstack == "":
		return true
	}
	return slices.Contains(finalCodes, f.Code) || f.python != ""
}

// final returns the first failure that would happen again, nil if there is none.
func (e *Error) final() *Failure {
	i := slices.IndexFunc(e.Failures, func(f Failure) bool { return f.Final && !f.Stopped })
	if i < 0 {
		return nil
	}
	return &e.Failures[i]
}

// Final reports whether another attempt would end as this one did: a rank has said so,
// by its error ([Final]) or by its exit code (64, 66, 78, 126, 127, or 2 with a text
// that explains its usage).
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
