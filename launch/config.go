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

// maxRanksPerCore is the limit beyond which a number of ranks is taken for a typing
// error.
const maxRanksPerCore = 128

// Config describes a job. Program and NumRanks, or Programs, have to be set. The zero
// value of every other field is its default.
type Config struct {
	// Program is what every rank runs. It is one of:
	//
	//   - the path of an executable file, or the name of one in PATH;
	//   - the directory of a Go main package, or a .go file, which is built once into a
	//     temporary file;
	//   - a .py file, which is run by python3 -u, or by the interpreter that PYTHON_EXEC
	//     names.
	Program string
	// Args are the program's arguments. In them, ${local_rank} stands for the local rank
	// of the worker.
	Args []string
	// Module says that Program is the name of a Python module (python3 -u -m).
	Module bool
	// Script says that Program is a Python script, whatever its name ends with.
	Script bool
	// Direct says that Program is an executable file, whatever its name ends with.
	Direct bool

	// Programs are several programs whose ranks form one job. The first ranks of this host
	// run the first program, the next ranks the second, and so on. Other hosts have lists
	// of their own. Programs replaces Program, Args and NumRanks.
	Programs []Program

	// AgentStore says whether the agent serves PyTorch's store to the ranks, as torchrun's
	// agent does. On several hosts, the value of the host with rank 0 counts. By default,
	// the agent serves it where rank 0 is a Python program: a .py file, Module, Script, a
	// command that begins with an interpreter (python3 train.py) or runs one in an
	// environment (env, uv, conda and the like), or a script whose first line is such a
	// command.
	AgentStore AgentStore

	// NumRanks is the number of ranks on this machine.
	NumRanks int
	// MasterAddr is the address of this machine at which rank 0 listens; default 127.0.0.1.
	MasterAddr string
	// MasterPort is the port at which rank 0 listens. A port in use is an error before
	// anything starts. 0 picks a free port for each attempt. On Linux no other launcher can
	// pick this port until the attempt ends, and rank 0 can listen only with SO_REUSEADDR,
	// which servers set (package net, PyTorch).
	MasterPort int
	// RunID is the job's name, which its workers find in TORCHELASTIC_RUN_ID; default "none".
	RunID string
	// Role is the name of the ranks' role, which they find in ROLE_NAME; default "default".
	Role string

	// VirtualLocalRank gives every rank LOCAL_RANK 0, and in CUDA_VISIBLE_DEVICES one GPU:
	// rank i of this host gets entry i of this process's CUDA_VISIBLE_DEVICES, or GPU i.
	VirtualLocalRank bool

	// Binding says to which processors each rank is bound (Linux); default none.
	Binding Binding

	// Figures can be asked for what the ranks of this host have done; nil for nobody who asks.
	Figures *Figures

	// Dir is the workers' working directory, default this process's.
	Dir string
	// Env is the environment that workers inherit, as KEY=VALUE; default os.Environ(). The
	// agent adds the rank's variables.
	Env []string

	// Stdout and Stderr get the output of the ranks, each line behind "[rank0] ";
	// default os.Stdout and os.Stderr. The launcher's own lines ("cohort: building …") go
	// to Stderr.
	Stdout, Stderr io.Writer
	// PassRank0 lets rank 0 write to this process's own standard output and error, so that
	// rank 0 still sees a terminal there. The failure report then has no last lines of
	// rank 0, because the agent has not seen them.
	PassRank0 bool

	// Logs says which output also goes to files, and which output is shown.
	Logs Logs
	// MaxRestarts is how often all ranks are started again after one has failed; default
	// never. TORCHELASTIC_RESTART_COUNT tells the ranks how often that has happened.
	MaxRestarts int
	// Notice says where to look for a notice that this machine is about to go.
	Notice Notice
	// Nodes makes the attempts of a job on several machines; nil means that this machine
	// has the whole job.
	Nodes Nodes
	// Environment says which environment this machine must have.
	Environment Environment

	// Watcher is told what happens to the workers of this host; nil for nobody.
	Watcher Watcher

	// Grace is the time that a worker has to end after a signal; then it gets SIGKILL.
	// Default 30 s.
	Grace time.Duration
	// FailGrace is the time that the other workers have to end by themselves after one has
	// failed; then they get SIGTERM. Default 1 s.
	FailGrace time.Duration
	// Survivors lets the other ranks go on when one fails. It is for programs whose
	// surviving ranks make a new group (dist.Group.NewGroup). The job ends when all its
	// ranks have ended, or when all that are left are stopped (SIGSTOP; on Linux). Run
	// returns nil if at least one rank ended with code 0 and no rank failed after that. The
	// report of the ranks that died then goes to Stderr.
	Survivors bool
	// Signals are the signals that end the job. The agent passes them on to the workers.
	// Default SIGTERM, SIGINT, SIGHUP, SIGQUIT.
	Signals []syscall.Signal
	// LeaveSignals leaves signals to the caller. Only the context then stops the job, by
	// SIGTERM.
	LeaveSignals bool
	// Exclusive says that this process does nothing but run the agent. The agent then takes
	// every process that becomes its child for one that a worker has left behind, also if it
	// has left the worker's session and cleared its environment (Linux).
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
		return cfg, badConfig("VirtualLocalRank", "%d ranks and %s: each rank needs a GPU of its own", cfg.NumRanks, envvar.VisibleGPUs.Assign(gpus))
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

// ConfigError says that a job cannot be started as described. Nothing was started.
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

// CheckRanks checks whether this machine starts n ranks. [Run] does so too; CheckRanks
// is for callers that want to know earlier. The error is a *ConfigError.
func CheckRanks(n int) error {
	if most := maxRanksPerCore * numCores(); n > most {
		return badConfig("NumRanks", "%d ranks on a machine of %d cores: at most %d (%d a core) are started, and more ranks than cores seldom help",
			n, numCores(), most, maxRanksPerCore)
	}
	return nil
}

// numCores is the number of cores that this process may use.
func numCores() int { return max(1, min(runtime.NumCPU(), runtime.GOMAXPROCS(0))) }

// withPrograms checks what is to run. Of several programs it puts the names into Program
// and the sum of their ranks into NumRanks.
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
	switch { // the configuration may have been completed before
	case cfg.Program != "" && cfg.Program != name || len(cfg.Args) > 0:
		return cfg, badConfig("Programs", "one program (%s) and a list of programs contradict each other: give one of the two", cfg.Program)
	case cfg.NumRanks != 0 && cfg.NumRanks != ranks:
		return cfg, badConfig("Programs", "a number of ranks (%d) and programs with numbers of their own contradict each other: leave out the first", cfg.NumRanks)
	case cfg.Module || cfg.Script || cfg.Direct:
		return cfg, badConfig("Programs", "of several programs, none can be a module, or a script without the ending .py: the names say how they are run")
	}
	cfg.Program, cfg.NumRanks = name, ranks
	return cfg, nil
}
