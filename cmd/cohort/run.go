// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/internal/transport"
	"github.com/cohort-ml/cohort/launch"
	"github.com/cohort-ml/cohort/launch/rendezvous"
	"github.com/cohort-ml/cohort/monitor/dashboard"
)

// runFlags are the flags of cohort run: torchrun's (torchrun.go) and its own.
type runFlags struct {
	torchrunFlags
	tokenFile string
	envCheck  string
	envFile   string
	programs  []string
	store     string
	survivors bool
	notice    launch.Notice
	mpirun    string
	dashboard dashboardFlag
	hostFlags
}

const runLong = `Start PROGRAM once for each rank, watch the processes and end all of them.

PROGRAM is the path of a binary or its name in PATH; the directory of a Go main
package, or a .go file, which is built once; or a .py script, which runs with
python3 -u or with the interpreter in PYTHON_EXEC. Everything behind PROGRAM
belongs to it. In ARGS, ${local_rank} stands for the local rank.

The flags are those of torchrun, also with underscores, and take their defaults
from torchrun's environment variables (PET_NPROC_PER_NODE for --nproc-per-node).
The flags --token-file, --program, --store, --survivors, --notice-file,
--notice-url, --mpi and those of hosts are Cohort's own.

Ranks. A rank finds its place in RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and
MASTER_PORT; cohort env variables lists them. Each line that a rank prints begins
with "[rank0] ". The ranks share a token that nobody else gets: a new one, or that
in COHORT_TOKEN, or that in the file of --token-file or COHORT_TOKEN_FILE. The
launcher removes the token from what the ranks print.

Several programs. The ranks of a job can run different programs, such as one of
PyTorch and one of Cohort that train the same model (dist.WithBackend("gloo")):
--program 2:train.py --program 2:./gorank. If rank 0 is a Python program (train.py,
python3 -m pkg, uv run train.py, a script whose first line names Python), the
launcher serves PyTorch's store at MASTER_ADDR:MASTER_PORT, for PyTorch 1.13 and
for 2.2 and later. With --store rank0 it leaves the port to rank 0.

Several machines. Give the same command on each machine: with --nnodes 2, or 2:4
for a job that continues while machines come and go; with --rdzv-backend and
--rdzv-endpoint for where they meet; and with --token-file for a token that cohort
token made on one of them. PROGRAM, or the list of --program, is what the ranks of
that machine run; it may differ between machines. The launcher on the machine of
rank 0 serves PyTorch's store to the machines of the job.

Hosts. With --hosts a,b:4 or --hostfile FILE this command starts the launchers of
all machines by the system's ssh, and ends them: the number behind a colon is that
of the ranks there, else --nproc-per-node says it. Ssh asks for nothing, so keys
must let you in. Cohort has to be on the hosts, in the same version, or is copied
there with --copy. The directory is the present one, or --remote-dir. Settings such
as COHORT_… and NCCL_… go to the hosts, and those of --export.

MPI. With --mpi the launcher of an MPI, mpirun, starts the ranks, and takes the
place of this process: cohort run --mpi --nproc-per-node 4 ./train. It sets
COHORT_BACKEND=mpi and a token for the ranks. PROGRAM is a binary that was built
with go build -tags mpi. docs/mpi.md has more.

Failures. When a rank fails, the launcher ends the others a second later, and with
--max-restarts it starts all of them again. With --survivors the others continue:
they can make a group of themselves (dist.Group.NewGroup). The job then ends when
all ranks have ended, and succeeds if all survivors succeed. The report says which
ranks failed and how.

Environments. Before ranks start on several machines, the launchers compare their
environments: program, packages of Python, variables, limits, interfaces, clocks and
more. A table names what differs, and how to mend it. docs/environments.md has more.

Notice. With --notice-file or --notice-url, the launcher looks every second for a
notice that this machine is about to go: a file that appears, or the answer of a
URL, such as the metadata service of Amazon
(/latest/meta-data/spot/instance-action), Google
(/computeMetadata/v1/instance/preempted) or Azure (/metadata/scheduledevents). The
notice ends the job as SIGTERM does: the ranks have time to save and are not
started again. On several machines the others continue without this one.

The exit code is 0 if every rank ended with 0; 1 if a rank failed or the job was
stopped; 2 if the job could not be started as asked.`

const runExample = `  cohort run --nproc-per-node 2 ./examples/ddp
  cohort run --nproc-per-node auto --max-restarts 3 train.py --epochs 3
  cohort run --program "2:train.py --lr 0.1" --program "2:./gorank -lr 0.1"
  cohort run --nproc-per-node 2 --log-dir logs --tee 3 ./examples/ddp
  cohort run --hosts node1,node2:4 --copy ./examples/ddp
  cohort run --token-file token.txt --nnodes 2:4 --rdzv-backend c10d \
      --rdzv-endpoint 10.0.0.1 ./examples/ddp`

func newRunCommand() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:     "run [flags] PROGRAM [ARGS...]",
		Short:   "Launch a program on several ranks",
		Long:    runLong,
		Example: runExample,
		Args:    func(_ *cobra.Command, args []string) error { return f.checkArgs(args) },
		RunE:    f.run,
	}
	f.add(cmd.Flags())
	return cmd
}

// checkArgs wants PROGRAM, or --program in its place.
func (f *runFlags) checkArgs(args []string) error {
	switch {
	case len(args) == 0 && len(f.programs) == 0:
		return usageError{errors.New("run needs a program: a binary, a Go package directory or a .py script")}
	case len(args) > 0 && len(f.programs) > 0:
		return usageError{fmt.Errorf("run: --program and %s contradict each other: give all programs by --program, each with its arguments, as in --program \"2:train.py --lr 0.1\"", args[0])}
	}
	return nil
}

// run makes a launch.Config of the flags and launches it.
func (f *runFlags) run(cmd *cobra.Command, args []string) error {
	if f.mpirun != "" {
		return f.runMPI(cmd.Flags(), args)
	}
	if f.onHosts() {
		return f.runHosts(cmd, args)
	}
	cfg, notices, err := f.config(cmd.Flags())
	if err != nil {
		return usageError{err}
	}
	for _, n := range notices {
		fmt.Fprintf(cmd.ErrOrStderr(), "cohort: %s\n", n)
	}
	if len(args) > 0 {
		cfg.Program, cfg.Args = args[0], args[1:]
	}
	cfg.Stdout, cfg.Stderr = cmd.OutOrStdout(), cmd.ErrOrStderr()
	launch.KeepSecrets()
	over, err := f.watch(cmd, &cfg)
	if err != nil {
		return usageError{err}
	}
	err = launch.Run(cmd.Context(), cfg)
	over(err)
	if nodes, ok := cfg.Nodes.(*rendezvous.Nodes); ok {
		f.tellNodes(cmd.Context(), nodes, err)
	}
	return err
}

// watch serves the dashboard of the job, if one was asked for.
func (f *runFlags) watch(cmd *cobra.Command, cfg *launch.Config) (over func(error), err error) {
	if f.dashboard.addr == "" {
		return func(error) {}, nil
	}
	name := cfg.Program
	for _, p := range cfg.Programs {
		name = strings.TrimSpace(name + " " + p.Path)
	}
	job := dashboard.NewJob(name, nil)
	cfg.Watcher, cfg.Figures = job, &f.dashboard.figures
	return f.dashboard.serve("cohort run "+name, f.dashboard.runs, job, cmd.ErrOrStderr())
}

// tellNodes tells the other machines why this one does not come, if it has not met them.
func (f *runFlags) tellNodes(ctx context.Context, nodes *rendezvous.Nodes, err error) {
	token, bad := transport.TokenFromEnv()
	if f.tokenFile != "" {
		token, bad = transport.ReadTokenFile(f.tokenFile)
	}
	if bad == nil {
		nodes.Cannot(ctx, token.Text(), err)
	}
}

func (f *runFlags) add(flags *pflag.FlagSet) {
	flags.SetInterspersed(false) // what follows PROGRAM is the program's
	flags.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		return pflag.NormalizedName(strings.ReplaceAll(name, "_", "-"))
	})
	f.torchrunFlags.add(flags)
	flags.StringArrayVar(&f.programs, "program", nil, "for a job of several programs, in place of PROGRAM: `N:PROGRAM` and its arguments, once for each program; the first N ranks of this machine run the first one, and so on")
	flags.StringVar(&f.store, "store", "auto", "who serves the store in which PyTorch's ranks meet: the launcher (agent), rank 0, or by auto the launcher if rank 0 is a Python program; the machine with rank 0 decides")
	oneOf(flags, "store", "agent", "rank0", "auto")
	groupFlags(flags, "Program", "program", "store")
	flags.BoolVar(&f.survivors, "survivors", false, "when a rank fails, let the others go on; the program has to make a new group of them")
	flags.StringVar(&f.notice.File, "notice-file", "", "if `FILE` appears, this machine is about to go: the ranks save and end")
	flags.StringVar(&f.notice.URL, "notice-url", "", "if `URL` says so, this machine is about to go; it may be the metadata service of a cloud")
	flags.StringVar(&f.mpirun, "mpi", "", "start the ranks by the launcher of an MPI, `MPIRUN` or the first mpirun in PATH; goes together with --nproc-per-node and --token-file alone")
	flags.Lookup("mpi").NoOptDefVal = "mpirun"
	groupFlags(flags, "Program", "mpi")
	groupFlags(flags, "Failure", "survivors", "notice-file", "notice-url")
	flags.StringVar(&f.tokenFile, "token-file", "", "`FILE` with the job's token, which only its owner can read (default: a new token)")
	flags.StringVar(&f.envCheck, "env-check", "stop", "what happens before ranks start if the environments of the machines differ: differences that must not be stop the job, all are only printed (warn), or none are looked for (off)")
	oneOf(flags, "env-check", "stop", "warn", "off")
	flags.StringVar(&f.envFile, "env-file", "", "`FILE` of cohort env export with the environment that this machine must have")
	f.dashboard.add(flags)
	flags.StringArrayVar(&f.dashboard.runs, "dashboard-run", nil, "the dashboard also shows the run in this `DIR`, such as the --out of a training; may be repeated")
	groupFlags(flags, "Output", "dashboard", "dashboard-run")
	groupFlags(flags, "Machine", "token-file", "env-check", "env-file")
	f.hostFlags.add(flags)
}

// config checks the flags and makes a launch configuration of them. The notices are
// about flags that have no effect.
func (f *runFlags) config(set *pflag.FlagSet) (cfg launch.Config, notices []string, err error) {
	if err := f.fromEnvironment(set); err != nil {
		return cfg, nil, err
	}
	place, err := f.fromPlace(set)
	if err != nil {
		return cfg, nil, err
	}
	if cfg, notices, err = f.torchrunFlags.config(set); err != nil {
		return cfg, nil, err
	}
	if place != "" {
		notices = append([]string{place}, notices...)
	}
	cfg.Exclusive, cfg.Survivors, cfg.Notice = true, f.survivors, f.notice
	if f.tokenFile != "" {
		if _, err := transport.ReadTokenFile(f.tokenFile); err != nil {
			return cfg, nil, fmt.Errorf("--token-file: %w", err)
		}
		cfg.Env = append(os.Environ(), envvar.Token.Assign(""), envvar.TokenFile.Assign(f.tokenFile))
	}
	if err := f.environment(&cfg); err != nil {
		return cfg, nil, err
	}
	if err := f.mixed(set, &cfg); err != nil {
		return cfg, nil, err
	}
	numRanks := cfg.NumRanks
	for _, p := range cfg.Programs {
		numRanks += p.NumRanks
	}
	more, err := f.output(&cfg, numRanks)
	if err != nil {
		return cfg, nil, err
	}
	notices = append(notices, more...)
	if f.several() {
		if cfg.Nodes, err = f.nodes(&cfg); err != nil {
			return cfg, nil, err
		}
	}
	return cfg, notices, nil
}

// environment sets what the environments of the machines are compared with.
func (f *runFlags) environment(cfg *launch.Config) (err error) {
	e := &cfg.Environment
	switch e.Check = launch.EnvironmentCheck(f.envCheck); e.Check {
	case launch.CheckStop, launch.CheckWarn, launch.CheckOff:
	default:
		return fmt.Errorf("--env-check %s: give stop, warn or off", f.envCheck)
	}
	if f.envFile == "" {
		return nil
	}
	if e.Check == launch.CheckOff {
		return errors.New("--env-file and --env-check off contradict each other: leave one out")
	}
	e.File = f.envFile
	if e.Expected, err = readEnvFile(f.envFile); err != nil {
		return fmt.Errorf("--env-file: %w", err)
	}
	return nil
}

// mixed configures a job of several programs, and who serves the store of PyTorch's
// ranks.
func (f *runFlags) mixed(set *pflag.FlagSet, cfg *launch.Config) error {
	switch f.store {
	case "auto":
	case "agent":
		cfg.AgentStore = launch.StoreByAgent
	case "rank0":
		cfg.AgentStore = launch.StoreByRank0
	default:
		return fmt.Errorf("--store %s: give agent, rank0 or auto", f.store)
	}
	if len(f.programs) == 0 {
		return nil
	}
	if set.Changed("nproc-per-node") {
		return fmt.Errorf("--program and %s contradict each other: each program has its number of ranks in front, as in --program 2:train.py", f.given("nproc-per-node"))
	}
	cfg.NumRanks = 0
	for _, text := range f.programs {
		p, err := launch.ParseProgram(text)
		if err != nil {
			return fmt.Errorf("--program %w", err)
		}
		cfg.Programs = append(cfg.Programs, p)
	}
	return nil
}
