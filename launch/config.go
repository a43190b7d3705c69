// SPDX-License-Identifier: Apache-2.0

package launch

import (
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

	// Of a job that Spawn starts: the name of this program, which is also the first
	// argument of the workers, and the number of the call (from 1; 0: not Spawn's).
	argv0     string
	spawnCall int64
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

// withPrograms checks what is to run, and makes one of several where only their names
// and their sum count.
func (cfg Config) withPrograms() (Config, error) {
	if len(cfg.Programs) == 0 {
		if cfg.Program == "" {
			return cfg, badConfig("Program", "no program to run")
		}
		return cfg, nil
	}
	var names []string
	ranks := 0
	for i, p := range cfg.Programs {
		if p.Path == "" {
			return cfg, badConfig("Programs", "program %d of %d has no name", i+1, len(cfg.Programs))
		}
		if p.NumRanks < 1 || p.NumRanks > 1<<20 {
			return cfg, badConfig("Programs", "%d ranks of program %s: at least 1", p.NumRanks, p.Path)
		}
		ranks += p.NumRanks
		names = append(names, p.Path)
	}
	name := strings.Join(names, " and ")
	switch { // what is filled in below may be there
	case cfg.Program != "" && cfg.Program != name || len(cfg.Args) > 0:
		return cfg, badConfig("Programs", "one program (%s) and a list of programs contradict each other: give one of the two", cfg.Program)
	case cfg.NumRanks != 0 && cfg.NumRanks != ranks:
		return cfg, badConfig("Programs", "%d ranks, and programs with numbers of their own: leave out the first", cfg.NumRanks)
	case cfg.Module || cfg.Script || cfg.Direct:
		return cfg, badConfig("Programs", "several programs are told apart by their names: none of them can be a module, or a script with another ending than .py")
	}
	cfg.Program, cfg.NumRanks = name, ranks
	return cfg, nil
}
