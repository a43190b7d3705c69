// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"errors"
	"fmt"
	"strings"
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
