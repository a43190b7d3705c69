// SPDX-License-Identifier: Apache-2.0

// Package launch starts the ranks of a job as processes of this machine,
// watches them, and leaves nothing behind when they end.
//
// [Run] launches any program: a binary, a Go package directory (built first), a
// Python script. [Spawn] gives a program rank processes of its own from inside
// its main function. Both are the same agent: it picks a port for rank 0,
// makes the job's token, starts the workers with the environment that torchrun
// gives (RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and the rest),
// copies their output line by line behind a prefix, and passes signals on.
//
// When a worker fails, the others are told (package agentpipe), have a second
// to end with errors of their own, and are then ended: SIGTERM, 30 seconds
// later SIGKILL. A SIGINT, SIGTERM, SIGHUP or SIGQUIT that the agent gets goes
// to the workers with the same grace (a SIGINT after a look, of a second at most, at
// whether ranks wait for each other, which is printed then); a second one, if it
// is SIGINT, kills at once. The result is nil only if every rank ended with code 0
// and nobody stopped the job; else it is an [*Error], whose Report says which rank
// failed first and how, with the last lines of its standard error. With
// [Config.Survivors] the others are told of a failure and go on instead.
//
// A job is made of attempts. [Config].MaxRestarts starts all workers again after a
// failure, at another port, so that no attempt meets what an earlier one has left. A
// failure that would happen again ([Final]) ends the job at once.
// Run is [Open], which checks everything and starts nothing, then an [Attempt]
// after the other by [Host.Run], then [Host.Close]; [Config].Nodes takes the place
// of the loop where other machines have a say in it.
//
// Output and errors. [Logs] writes torchrun's tree of files. Each worker finds in
// TORCHELASTIC_ERROR_FILE where to say what it ends with; the functions that Spawn
// runs do ([Record] is for others), and the report says it.
//
// No process stays. Every worker leads a session of its own. What workers
// started and left behind is ended after them (SIGTERM, a second later
// SIGKILL), on Linux wherever it has gone, elsewhere within the process group. If
// the agent itself is killed, the kernel kills the workers (Linux) and a guard,
// a small shell process beside the agent, kills what is below them. Where this process may
// make a cgroup (v2), workers are born into one, from which nothing escapes; elsewhere
// a process that has both left its session and cleared its environment survives
// a kill -9 of the agent. Shared memory of ranks has no name, and their sockets
// are abstract: both go with the last process that has them (Linux).
//
// The ranks of a job that failed leave the dumps of their flight recorders in a
// directory cohort-… of os.TempDir, which the report names. A later job of the same
// user removes it after a week; COHORT_RECORDER_DIR names another one, which stays.
//
// Secrets. The token goes to the workers in their environment, never in
// arguments. Where a rank prints it, or much of it, the agent covers it with asterisks, in
// output and reports (not in what [Config].PassRank0 lets through). Control characters that
// ranks print, but for tabs and the ends of lines, are shown as ^[ and the like, on the
// terminal and in reports: no rank commands a terminal that is not its own. [KeepSecrets] is for
// a process that is a launcher only.
//
// Caveats. An agent catches signals and, on Linux, makes its process the one
// that orphans fall to, for as long as Run or Spawn is running: these belong to
// the process, so run one agent at a time in it. Workers are killed when the
// thread that started them ends; Run keeps its goroutine on its thread.
package launch

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/cohort-ml/cohort/internal/envvar"
)

// maxRanksPerCore bounds what counts as a number of ranks and not as a slip of
// the keyboard.
const maxRanksPerCore = 128

// Config is what to run. Program (or Module) and NumRanks have to be set; the
// zero value of every other field is its default.
type Config struct {
	// Program is what every rank runs: the path of an executable file, or the
	// name of one in PATH; the directory of a Go main package, or a .go file,
	// which is built once into a temporary file; a .py file, which gets
	// `python3 -u` (or the interpreter that PYTHON_EXEC names) in front.
	Program string
	// Args are the program's arguments. ${local_rank} in them stands for the
	// local rank of the worker.
	Args []string
	// Module takes Program as the name of a Python module (python3 -u -m).
	Module bool
	// Script takes Program as a Python script, whatever its name ends with.
	Script bool
	// Direct runs Program as it is, whatever its name ends with.
	Direct bool

	// Programs, in place of Program, Args and NumRanks, are several programs whose ranks
	// are those of one job: the first ranks of this host run the first one, and so on.
	// Other hosts have lists of their own.
	Programs []Program

	// AgentStore says whether the agent serves PyTorch's store to the ranks, as
	// torchrun's does; by default where rank 0 is a Python program: a .py file, Module,
	// Script, a command that begins with an interpreter (python3 train.py) or runs one
	// in an environment (env, uv, conda and their like), or a script whose first line is
	// such a command. What counts is what the host says that has rank 0.
	AgentStore AgentStore

	// NumRanks is the number of ranks, all on this machine.
	NumRanks int
	// MasterAddr is where rank 0 listens, an address of this machine; default 127.0.0.1.
	MasterAddr string
	// MasterPort is the port there; 0 picks a free one. A port in use is an
	// error before anything starts.
	MasterPort int
	// RunID names the job to its workers (TORCHELASTIC_RUN_ID); default "none".
	RunID string
	// Role names the ranks' role to them (ROLE_NAME); default "default".
	Role string

	// VirtualLocalRank gives every rank LOCAL_RANK 0 and one GPU to see: the one of
	// CUDA_VISIBLE_DEVICES (default all) that its local rank would choose.
	VirtualLocalRank bool

	// Binding is to which processors ranks are bound; default all (Linux).
	Binding Binding

	// Dir is the workers' working directory, default this process's.
	Dir string
	// Env is what workers inherit, KEY=VALUE, default os.Environ(); the rank's
	// variables are added to it.
	Env []string

	// Stdout and Stderr get the output of the ranks, each line behind "[rank0] ";
	// default os.Stdout and os.Stderr. Notices ("building …") go to Stderr.
	Stdout, Stderr io.Writer
	// PassRank0 lets rank 0 write to this process's own standard output and
	// error, so that a terminal stays a terminal for it. A failure report then
	// has no last lines for rank 0: they were not seen.
	PassRank0 bool

	// Logs says where the output goes besides, and which of it is shown.
	Logs Logs
	// MaxRestarts is how often all ranks are started again after one has failed;
	// default never. TORCHELASTIC_RESTART_COUNT tells them how often it has been.
	MaxRestarts int
	// Notice is where to look for notice that this machine is about to go.
	Notice Notice
	// Nodes makes the attempts of a job on several machines; nil means that the
	// job is this machine's alone.
	Nodes Nodes

	// Grace is how long a worker may take to end after a signal, before
	// SIGKILL; default 30 s.
	Grace time.Duration
	// FailGrace is how long the others may take to end by themselves after one
	// has failed, before SIGTERM; default 1 s.
	FailGrace time.Duration
	// Survivors lets the other ranks go on when one ends badly: for programs
	// whose ranks make a group of those that are left (dist.Group.NewGroup). The
	// job ends when all its ranks have ended, or those that have not are stopped
	// (SIGSTOP; on Linux). If at least one rank ended with code 0 and none failed
	// after the first that did, Run returns nil, and who died and how goes to Stderr.
	Survivors bool
	// Signals are those that end the job: they are passed on to the workers.
	// Default SIGTERM, SIGINT, SIGHUP, SIGQUIT.
	Signals []syscall.Signal
	// LeaveSignals leaves signals to the caller: only the context stops the job,
	// with SIGTERM.
	LeaveSignals bool
	// Exclusive says that this process does nothing but run the agent: any
	// process that becomes its child is then taken for a worker's orphan, even if
	// it has left the worker's session and cleared its environment (Linux).
	Exclusive bool

	argv0 string // of the workers, where it is not the program's path
	extra []string
	guard *guard // ends what this process cannot end any more
}

// Nodes joins this host with others, attempt by attempt, and runs the attempts
// ([Host.Run]) until the job has ended.
type Nodes interface {
	Run(ctx context.Context, h *Host) error
}

// ConfigError is a job that cannot be started as asked. Nothing was started.
type ConfigError struct {
	Field string // of Config
	Err   error
}

func (e *ConfigError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *ConfigError) Unwrap() error { return e.Err }

func badConfig(field, format string, args ...any) error {
	return &ConfigError{Field: field, Err: fmt.Errorf(format, args...)}
}

// Run launches the job and waits for its end, or ends it when ctx is done. A
// [*ConfigError] means that nothing was started, an [*Error] that the job did
// not end well.
func Run(ctx context.Context, cfg Config) error {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return err
	}
	if cfg.Nodes == nil && cfg.MasterPort != 0 {
		if err := checkPort(cfg.MasterAddr, cfg.MasterPort); err != nil {
			return &ConfigError{Field: "MasterPort", Err: err}
		}
	}
	h, err := Open(ctx, cfg)
	if err != nil {
		return err
	}
	defer h.Close()
	if cfg.Nodes != nil {
		err = cfg.Nodes.Run(ctx, h)
	} else {
		err = h.runAlone(ctx)
	}
	handOn(err)
	return err
}

func (cfg Config) withDefaults() (Config, error) {
	cfg, err := cfg.withPrograms()
	if err != nil {
		return cfg, err
	}
	if cfg.NumRanks < 1 {
		return cfg, badConfig("NumRanks", "%d ranks: a job has at least 1", cfg.NumRanks)
	}
	if err := CheckRanks(cfg.NumRanks); err != nil {
		return cfg, err
	}
	if cfg.MasterPort < 0 || cfg.MasterPort > 65535 {
		return cfg, badConfig("MasterPort", "master port %d: ports are 1 to 65535 (0 or none picks a free one)", cfg.MasterPort)
	}
	if cfg.Dir != "" {
		if st, err := os.Stat(cfg.Dir); err != nil {
			return cfg, &ConfigError{Field: "Dir", Err: fmt.Errorf("working directory: %w", err)}
		} else if !st.IsDir() {
			return cfg, badConfig("Dir", "working directory %s is not a directory", cfg.Dir)
		}
	}
	if cfg.MasterAddr == "" {
		cfg.MasterAddr = "127.0.0.1"
	}
	if cfg.Env == nil {
		cfg.Env = os.Environ()
	}
	if cfg.MaxRestarts < 0 {
		return cfg, badConfig("MaxRestarts", "%d restarts: give 0 or more", cfg.MaxRestarts)
	}
	if gpus := valueOf(cfg.Env, envvar.VisibleGPUs); cfg.VirtualLocalRank && gpus != "" && cfg.NumRanks > 1+strings.Count(gpus, ",") {
		return cfg, badConfig("VirtualLocalRank", "%d ranks, and %s: each rank needs one", cfg.NumRanks, envvar.VisibleGPUs.Assign(gpus))
	}
	if len(cfg.Signals) == 0 {
		cfg.Signals = defaultSignals()
	}
	if cfg.RunID == "" {
		cfg.RunID = "none"
	}
	if cfg.Role == "" {
		cfg.Role = "default"
	}
	if cfg.Stdout == nil {
		cfg.Stdout = os.Stdout
	}
	if cfg.Stderr == nil {
		cfg.Stderr = os.Stderr
	}
	if cfg.Grace == 0 {
		cfg.Grace = defaultPatience.grace
	}
	if cfg.FailGrace == 0 {
		cfg.FailGrace = defaultPatience.fail
	}
	return cfg, nil
}

// CheckRanks says whether this machine starts so many ranks, which Run says too: for who
// wants to know before anything begins. The error is a *ConfigError.
func CheckRanks(n int) error {
	if most := maxRanksPerCore * numCores(); n > most {
		return badConfig("NumRanks", "%d ranks on a machine of %d cores: at most %d (%d a core) are started, and more ranks than cores seldom help",
			n, numCores(), most, maxRanksPerCore)
	}
	return nil
}

// numCores is the number of cores that this process may use.
func numCores() int { return max(1, min(runtime.NumCPU(), runtime.GOMAXPROCS(0))) }

// randomHex returns n random bytes as text.
func randomHex(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails: it ends the process instead
	return hex.EncodeToString(b)
}

// ExitCode is the code for os.Exit after Run or Spawn: 0 for nil, 2 for a
// [*ConfigError], else 1, whatever the codes of the ranks (as torchrun).
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
