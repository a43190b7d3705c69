// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/cohort-ml/cohort/internal/errorfile"
)

// Run launches a job and waits for its end. It ends the job when ctx is done. A
// [*ConfigError] means that nothing was started, an [*Error] that the job failed or was
// stopped.
func Run(ctx context.Context, cfg Config) error {
	h, err := Open(ctx, cfg)
	if err != nil {
		return err
	}
	defer h.Close()
	if err = h.checkEnvironment(ctx); err != nil {
		passErrorFileOn(err)
		return err
	}
	if cfg.Nodes != nil {
		err = cfg.Nodes.Run(ctx, h)
	} else {
		err = h.runAlone(ctx)
	}
	passErrorFileOn(err)
	return err
}

// ExitCode returns the code for os.Exit after Run or Spawn: 0 for nil, 2 for a
// [*ConfigError], else 1. As with torchrun, it does not depend on the codes of the ranks.
func ExitCode(err error) int {
	var bad *ConfigError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &bad):
		return 2
	default:
		return 1
	}
}

// Exit ends the process after Run or Spawn. It writes the report of a failed job to
// standard error and exits with [ExitCode].
func Exit(err error) {
	switch e := err.(type) {
	case nil:
	case *Error:
		e.Report(os.Stderr)
	case *ConfigError:
		errorfile.Refuse(err)
		fmt.Fprintf(os.Stderr, "%v\n", err)
	default:
		fmt.Fprintf(os.Stderr, "%v\n", err)
	}
	os.Exit(ExitCode(err))
}
