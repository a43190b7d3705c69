// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cohort-ml/cohort/internal/doctor"
	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/internal/visible"
)

// doctorFlags are the flags of cohort doctor.
type doctorFlags struct {
	asJSON   bool
	o        doctor.Options
	hosts    string
	hostFile string
	via      string
	remote   string
	probe    bool
	// allocation takes the hosts of the scheduler's job.
	allocation bool
	problems   bool
}

func newDoctorCommand() *cobra.Command {
	f := &doctorFlags{}
	cmd := &cobra.Command{
		Use:   "doctor [RUN_DIR|FILE] [--hosts A,B]",
		Short: "Find what keeps a job from running, or makes it slow",
		Long: `Examine this host, and print each finding with the reason why it matters and the
command that mends it. With a directory, read the logs, error files and flight
records of a run that has failed, and name known causes.

With --hosts or --hostfile, examine several hosts and the network between them. A
process is started on each host by ssh, or by the command of --via. In a batch job of
Slurm, --allocation takes the nodes of the job, and srun as that command. It needs this program at the same
path on each host, or at the one that --remote-cohort names, and nothing else. Hosts
are asked over that process's standard input, so that a firewall between them, or a
name that leads elsewhere, is found and hinders nothing.

The exit code is 0 if nothing was found, 1 with findings, and 2 if the examination
itself could not run.`,
		Example: `  cohort doctor --ranks 8 --dir out
  cohort doctor logs
  cohort doctor --allocation --dir /data/out
  cohort doctor --hosts node1,node2,node3 --ranks 8 --dir /data/out`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usageError{fmt.Errorf("doctor takes one directory or file of a run, got %q", args)}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.o.Ranks < 1 || f.o.Ranks > 65536 {
				return usageError{fmt.Errorf("--ranks %d: want 1 to 65536", f.o.Ranks)}
			}
			if f.o.Port < 0 || f.o.Port > 65535 {
				return usageError{fmt.Errorf("--port %d: want 0 to 65535", f.o.Port)}
			}
			if err := f.takeAllocation(); err != nil {
				return err
			}
			several := f.hosts != "" || f.hostFile != ""
			if len(args) == 1 {
				if several {
					return usageError{errors.New("doctor: a run and hosts are two examinations: give one of them")}
				}
				return f.readRun(cmd, args[0])
			}
			if f.probe {
				return doctor.Host{Version: version(debug.ReadBuildInfo())}.Serve(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout())
			}
			if several {
				return f.examine(cmd)
			}
			f.o.World = f.o.Ranks
			facts := doctor.Collect(cmd.Context(), f.o)
			found := f.told(doctor.Judge(facts))
			if f.asJSON {
				return f.printJSON(cmd, found, struct {
					Findings []doctor.Finding `json:"findings"`
					Host     *doctor.Facts    `json:"host"`
				}{found, facts})
			}
			return f.print(cmd, found, nil, fmt.Sprintf("host %s", facts.Host))
		},
	}
	fl := cmd.Flags()
	fl.BoolVar(&f.asJSON, "json", false, "print one JSON object, with all that was read")
	fl.IntVar(&f.o.Ranks, "ranks", 1, "ranks that the job will have on a host")
	fl.IntVar(&f.o.Port, "port", doctor.DefaultPort, "port at which rank 0 will listen; 0: do not look")
	fl.StringVar(&f.o.Dir, "dir", "", "`DIR` for checkpoints and logs, which several hosts should share (default: the working directory)")
	fl.StringVar(&f.hosts, "hosts", "", "examine these `HOSTS`, as cohort run --hosts has them: a,b:4 or node[01-16]")
	fl.StringVar(&f.hostFile, "hostfile", "", "examine the hosts in `FILE`, one a line")
	fl.BoolVar(&f.allocation, "allocation", false, "examine the nodes of the batch job of Slurm in which this runs")
	fl.BoolVar(&f.problems, "problems", false, "leave warnings out: tell only what makes jobs fail or hang, as for a container's health check")
	fl.StringVar(&f.via, "via", "", "`COMMAND` that runs another one on a host; both stand behind it (default: ssh)")
	fl.StringVar(&f.remote, "remote-cohort", "", "`PATH` of this program on the hosts (default: its path here)")
	fl.BoolVar(&f.probe, "probe", false, "answer the requests of another cohort doctor on standard input")
	_ = fl.MarkHidden("probe")
	return cmd
}

// takeAllocation sets the hosts to those of the scheduler's job, if the user wants that.
func (f *doctorFlags) takeAllocation() error {
	if !f.allocation {
		return nil
	}
	if f.hosts != "" || f.hostFile != "" {
		return usageError{errors.New("doctor: --allocation and --hosts both name the hosts: give one of them")}
	}
	a, ok := envvar.FindAllocation()
	switch {
	case !ok:
		return usageError{errors.New("doctor: --allocation: this is no batch job of several nodes: give it in the script of sbatch, outside of srun, or name the hosts by --hosts")}
	case a.Hosts == "":
		return usageError{fmt.Errorf("doctor: --allocation: %s (%s) does not list its nodes in a variable: name them by --hosts", a.Scheduler, a.Var)}
	}
	f.hosts = a.Hosts
	if f.via == "" {
		f.via = a.Via
	}
	return nil
}

// told leaves out findings that are not to be told.
func (f *doctorFlags) told(found []doctor.Finding) []doctor.Finding {
	if found == nil {
		found = []doctor.Finding{} // a list in JSON
	}
	if !f.problems {
		return found
	}
	return slices.DeleteFunc(found, func(x doctor.Finding) bool { return x.Level != doctor.Problem })
}

// readRun names the causes of a failed run.
func (f *doctorFlags) readRun(cmd *cobra.Command, path string) error {
	r, err := doctor.ReadRun(path)
	if err != nil {
		return usageError{fmt.Errorf("doctor: %w", err)}
	}
	r.Findings = f.told(r.Findings)
	if f.asJSON {
		return f.printJSON(cmd, r.Findings, r)
	}
	more := r.Waits
	if len(more) > 0 {
		more = append([]string{"the flight records say:"}, more...)
	}
	for _, n := range r.Notes {
		more = append(more, "note: "+n)
	}
	subject := fmt.Sprintf("%d files of %s", r.Files, path)
	if r.Files == 1 {
		subject = "1 file of " + path
	}
	return f.print(cmd, r.Findings, more, subject)
}

func (f *doctorFlags) printJSON(cmd *cobra.Command, found []doctor.Finding, v any) error {
	enc := json.NewEncoder(cmd.OutOrStdout())
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return usageError{err}
	}
	return foundError(found)
}

// print writes findings, then more lines.
func (f *doctorFlags) print(cmd *cobra.Command, found []doctor.Finding, more []string, subject string) error {
	var b strings.Builder
	for _, x := range found {
		where := ""
		if len(x.Hosts) > 0 {
			where = strings.Join(x.Hosts, ", ") + ": "
		}
		fmt.Fprintf(&b, "%s: %s: %s%s\n", x.Level, x.Check, where, x.What)
		for _, l := range x.Lines {
			fmt.Fprintf(&b, "  > %s\n", l)
		}
		fmt.Fprintf(&b, "  why: %s\n  mend: %s\n", x.Why, x.Mend)
	}
	for _, l := range more {
		fmt.Fprintln(&b, l)
	}
	switch n := len(found); n {
	case 0:
		fmt.Fprintf(&b, "%s: nothing found\n", subject)
	case 1:
		fmt.Fprintf(&b, "%s: 1 finding\n", subject)
	default:
		fmt.Fprintf(&b, "%s: %d findings\n", subject, n)
	}
	if _, err := io.WriteString(cmd.OutOrStdout(), visible.Text(b.String())); err != nil {
		return usageError{err}
	}
	return foundError(found)
}

// findingsError ends the command with code 1: its findings have been printed.
type findingsError struct{ n int }

func (e findingsError) Error() string { return fmt.Sprintf("%d findings", e.n) }

func foundError(found []doctor.Finding) error {
	if len(found) == 0 {
		return nil
	}
	return findingsError{len(found)}
}
