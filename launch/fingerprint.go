// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/cohort-ml/cohort/internal/fingerprint"
)

// EnvironmentCheck says what happens if this machine's environment is not as it should be.
type EnvironmentCheck string

// The values of EnvironmentCheck. The empty one is CheckStop.
const (
	CheckStop EnvironmentCheck = "stop" // differences that must not be stop the job
	CheckWarn EnvironmentCheck = "warn" // differences are printed
	CheckOff  EnvironmentCheck = "off"  // nothing is compared
)

// Environment says with what the environment of this machine is compared, before ranks start.
// On several machines, the machines are also compared with each other.
type Environment struct {
	Check EnvironmentCheck
	// Expected is the environment that this machine must have; nil for any.
	Expected *fingerprint.Fingerprint
	// File is the name of the file with Expected, for messages.
	File string
	// More are names of further variables that are compared; NAME* stands for all that begin
	// so.
	More []string
}

// Fingerprint describes the environment in which the ranks of this machine run.
func (h *Host) Fingerprint(ctx context.Context) *fingerprint.Fingerprint {
	o := fingerprint.Options{Environ: h.cfg.Env, More: h.cfg.Environment.More}
	p := h.progs[0]
	switch {
	case p.isPython || p.byItself && isInterpreter(p.path):
		o.Python = p.path
		for _, arg := range p.argv[1:] {
			if filepath.Ext(arg) == ".py" {
				o.Program = arg
				break
			}
		}
	default:
		if o.Program = p.path; p.byItself {
			o.Python = fingerprint.ActivePython(h.cfg.Env)
		}
	}
	f := fingerprint.Collect(ctx, o)
	if p.tmp != "" { // built here: the file has paths of this machine in it
		f.Set(fingerprint.Program, "sha256", "")
		f.Set(fingerprint.Program, "path", h.cfg.Program)
	}
	return f
}

// checkEnvironment compares this machine with the environment that it must have.
func (h *Host) checkEnvironment(ctx context.Context) error {
	e := h.cfg.Environment
	switch e.Check {
	case "", CheckStop, CheckWarn, CheckOff:
	default:
		return badConfig("Environment", "the check %q is unknown: give stop, warn or off", e.Check)
	}
	if e.Expected == nil || e.Check == CheckOff {
		return nil
	}
	all := fingerprint.Verify(e.Expected, h.Fingerprint(ctx))
	if len(all) == 0 {
		return nil
	}
	fmt.Fprintf(h.cfg.Stderr, "cohort: this machine has not the environment of %s:\n%s", e.File, indent(fingerprint.Table(all)))
	if e.Check == CheckWarn || !fingerprint.Stops(all) {
		return nil
	}
	return badConfig("Environment", "this machine has not the environment of %s: %s: mend the lines above, or give --env-check warn", e.File, fingerprint.Summary(all))
}

// indent sets the lines of a table apart from other lines.
func indent(text string) string {
	return "  " + strings.ReplaceAll(strings.TrimSuffix(text, "\n"), "\n", "\n  ") + "\n"
}
