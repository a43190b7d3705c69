// SPDX-License-Identifier: Apache-2.0

// Package envvar declares every environment variable that Cohort reads or
// sets, so that one list can be printed, documented and searched.
//
// A [Var] is the name of a variable. Its methods read the process's environment when they
// are called, and cache nothing. A variable that is set to the empty string counts as not
// set. Values are input from outside: every parser returns an [*Error] that names the
// variable and the value, and says which values are accepted. Neither errors nor [List] show
// secrets.
//
// The launcher sets the variables of its workers in launch/environment.go.
package envvar

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

// Var is the name of an environment variable.
type Var string

// The place of a process in its job, set by the launcher as torchrun does.
const (
	Rank           Var = "RANK"
	LocalRank      Var = "LOCAL_RANK"
	GroupRank      Var = "GROUP_RANK"
	RoleRank       Var = "ROLE_RANK"
	RoleName       Var = "ROLE_NAME"
	WorldSize      Var = "WORLD_SIZE"
	LocalWorldSize Var = "LOCAL_WORLD_SIZE"
	GroupWorldSize Var = "GROUP_WORLD_SIZE"
	RoleWorldSize  Var = "ROLE_WORLD_SIZE"
	MasterAddr     Var = "MASTER_ADDR"
	MasterPort     Var = "MASTER_PORT"
)

// Other variables that torchrun's programs expect.
const (
	RestartCount  Var = "TORCHELASTIC_RESTART_COUNT"
	MaxRestarts   Var = "TORCHELASTIC_MAX_RESTARTS"
	RunID         Var = "TORCHELASTIC_RUN_ID"
	UseAgentStore Var = "TORCHELASTIC_USE_AGENT_STORE"
	ErrorFile     Var = "TORCHELASTIC_ERROR_FILE"
	OMPNumThreads Var = "OMP_NUM_THREADS"
	PythonExec    Var = "PYTHON_EXEC"
	NCCLErrors    Var = "TORCH_NCCL_ASYNC_ERROR_HANDLING"

	SignalsToHandle    Var = "TORCHELASTIC_SIGNALS_TO_HANDLE"
	LinePrefixTemplate Var = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"
	ShutdownTimeout    Var = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
	VisibleGPUs        Var = "CUDA_VISIBLE_DEVICES"
)

// Variables of PyTorch's ranks with the backend gloo. Cohort's ranks among them read them
// too.
const (
	GlooInterface    Var = "GLOO_SOCKET_IFNAME"
	GlooTransport    Var = "GLOO_DEVICE_TRANSPORT"
	GlooTLSKey       Var = "GLOO_DEVICE_TRANSPORT_TCP_TLS_PKEY"
	GlooTLSCert      Var = "GLOO_DEVICE_TRANSPORT_TCP_TLS_CERT"
	GlooTLSCAFile    Var = "GLOO_DEVICE_TRANSPORT_TCP_TLS_CA_FILE"
	GlooTLSCAPath    Var = "GLOO_DEVICE_TRANSPORT_TCP_TLS_CA_PATH"
	GlooLazy         Var = "TORCH_GLOO_LAZY_INIT"
	GlooRankSequence Var = "GLOO_ENABLE_RANK_AS_SEQUENCE_NUMBER"
	InitBarrier      Var = "TORCH_DIST_INIT_BARRIER"
	PyTorchDebug     Var = "TORCH_DISTRIBUTED_DEBUG"
)

// Cohort's own.
const (
	Token       Var = "COHORT_TOKEN"
	TokenFile   Var = "COHORT_TOKEN_FILE"
	NodeID      Var = "COHORT_NODE_ID"
	NodeAddrs   Var = "COHORT_NODE_ADDRS"
	AgentFD     Var = "COHORT_AGENT_FD"
	Spawn       Var = "COHORT_SPAWN"
	Job         Var = "COHORT_JOB"
	NumThreads  Var = "COHORT_NUM_THREADS"
	Interface   Var = "COHORT_INTERFACE"
	Transport   Var = "COHORT_TRANSPORT"
	Encrypt     Var = "COHORT_ENCRYPT"
	Silence     Var = "COHORT_SILENCE"
	Debug       Var = "COHORT_DEBUG"
	RecorderDir Var = "COHORT_RECORDER_DIR"
	Notice      Var = "COHORT_NOTICE"
	MPI         Var = "COHORT_MPI"
	CUDAPath    Var = "COHORT_CUDA_PATH"
	Backend     Var = "COHORT_BACKEND"
	TestClock   Var = "COHORT_TEST_CLOCK"
	Cache       Var = "COHORT_CACHE"
	Profile     Var = "COHORT_PROFILE"

	EtcdPassword Var = "COHORT_ETCD_PASSWORD"
)

// Variables of S3's clients. The credentials are read by the client itself.
const (
	AWSAccessKey     Var = "AWS_ACCESS_KEY_ID"
	AWSSecretKey     Var = "AWS_SECRET_ACCESS_KEY"
	AWSSessionToken  Var = "AWS_SESSION_TOKEN"
	AWSProfile       Var = "AWS_PROFILE"
	AWSRegion        Var = "AWS_REGION"
	AWSDefaultRegion Var = "AWS_DEFAULT_REGION"
	AWSEndpointS3    Var = "AWS_ENDPOINT_URL_S3"
	AWSEndpoint      Var = "AWS_ENDPOINT_URL"
)

// The limits of Silence. With a shorter time, a short delay of the system would be taken for
// silence.
const (
	MinSilence = 100 * time.Millisecond
	MaxSilence = 24 * time.Hour
)

// Transports are the values of Transport, the default first.
func Transports() []string { return []string{"auto", "shm", "unix", "tcp", "tls"} }

// declaration describes a variable.
type declaration struct {
	name    Var
	meaning string
	secret  bool
}

func declarations() []declaration {
	return []declaration{
		{Rank, "this process's rank in the job, 0 to WORLD_SIZE-1", false},
		{WorldSize, "number of ranks in the job", false},
		{LocalRank, "this process's rank on its node, 0 to LOCAL_WORLD_SIZE-1", false},
		{LocalWorldSize, "number of ranks on this node", false},
		{GroupRank, "this node's rank among the nodes", false},
		{GroupWorldSize, "number of nodes", false},
		{RoleName, "role of this process (--role, default \"default\")", false},
		{RoleRank, "this process's rank among those of its role", false},
		{RoleWorldSize, "number of ranks of this role", false},
		{MasterAddr, "host on which rank 0 listens", false},
		{MasterPort, "TCP port on which rank 0 listens", false},
		{RestartCount, "how often the launcher has restarted the workers", false},
		{MaxRestarts, "how often the launcher may restart the workers", false},
		{RunID, "name of the job, equal on all nodes", false},
		{UseAgentStore, "whether the launcher serves the store at MASTER_PORT (True or False)", false},
		{ErrorFile, "file into which a worker writes the error with which it ends", false},
		{OMPNumThreads, "threads for programs that use OpenMP", false},
		{PythonExec, "interpreter for .py programs (default python3)", false},
		{NCCLErrors, "makes PyTorch's NCCL ranks end when a peer has an error; Cohort sets 1", false},
		{SignalsToHandle, "signals that the launcher passes on to the workers (--signals-to-handle)", false},
		{LinePrefixTemplate, "beginning of each line of a rank, if --log-line-prefix-template is not given", false},
		{ShutdownTimeout, "seconds that a rank has to end after a signal, if --shutdown-timeout is not given (default 30)", false},
		{VisibleGPUs, "GPUs that ranks may use; --nproc-per-node gpu counts them, --virtual-local-rank gives each rank one", false},
		{GlooInterface, "with backend gloo: network interfaces at which PyTorch ranks reach this one, separated by commas (default: the address of the host's name; cohort run sets it on several nodes)", false},
		{GlooTransport, "with backend gloo: TCP (default) or TCP_TLS, the same on all ranks", false},
		{GlooTLSKey, "with TCP_TLS: PEM file of this rank's private key", false},
		{GlooTLSCert, "with TCP_TLS: PEM file of this rank's certificate", false},
		{GlooTLSCAFile, "with TCP_TLS: PEM file of the certificates of the authorities that have signed those of peers", false},
		{GlooTLSCAPath, "with TCP_TLS: directory of such PEM files", false},
		{GlooLazy, "with backend gloo: 1 where PyTorch 2.8 and later connect two ranks when they first talk, the same on all ranks", false},
		{GlooRankSequence, "with backend gloo: 1 where PyTorch 2.8 and later say their rank when they connect, the same on all ranks", false},
		{InitBarrier, "with backend gloo: 1 where PyTorch 2 waits for all ranks in the store after a group is made, the same on all ranks", false},
		{PyTorchDebug, "with backend gloo: DETAIL is refused, because PyTorch's ranks then make groups of their own and wait in them for all ranks", false},
		{Token, "the job's token, 64 hexadecimal digits: each rank proves that it knows the token", true},
		{TokenFile, "file that holds the job's token, readable by its owner only", false},
		{EtcdPassword, "for --rdzv-backend etcd: password of the user that --rdzv-conf user=NAME names; the ranks do not get it", true},
		{NodeID, "id of the node: ranks with the same node id share memory", false},
		{NodeAddrs, "addresses of a job's nodes, separated by commas: with backend gloo, PyTorch ranks are admitted from these (cohort run sets it on several nodes, whose launchers have proved the token)", false},
		{AgentFD, "descriptor of the pipe on which the launcher tells this worker which others have ended", false},
		{Spawn, "set in rank processes that launch.Spawn made from the program's own binary", false},
		{Job, "id of a launch: the launcher finds processes by it that ranks have left behind; not secret", false},
		{NumThreads, "threads of the work pool (default: cores divided by local ranks)", false},
		{Interface, "network interface (name, local IP address or CIDR) on which peers reach this process (default: the one on the route to the master)", false},
		{Debug, "if it is set, and not to 0, false, no or off: rank 0 of each group prints how collectives are served and why, once per operation and size class", false},
		{RecorderDir, "directory into which ranks write their flight recorders when a group fails or the launcher asks; without it, nothing is written (cohort run sets it)", false},
		{Notice, "file that appears when the launcher has had a notice that this machine is about to go: JSON with notice and deadline; set if --notice-file or --notice-url is given", false},
		{Backend, "backend of dist.Init where the program names none: native (default), gloo or mpi; with mpi, a process that mpirun or srun has started is a rank", false},
		{MPI, "with backend mpi: path or name of the MPI's library (default: the one of the launcher that started the process)", false},
		{CUDAPath, "directories in which the libraries of CUDA are looked for first, separated by colons, in programs built with -tags cuda (docs/gpu.md)", false},
		{Cache, "directory for what is made once: indexes and copies of files of records (default: cohort/records in the user's cache), and the measured rates of the machine (default: cohort there)", false},
		{Profile, "steps of which train.Run writes a trace to the directory of the run, such as 100-105, if the program asks for none (docs/monitor.md)", false},
		{TestClock, "for tests: how far the clock of this process is from the right time, such as 90s, where clocks of nodes are compared", false},
		{Transport, "links between ranks of one node: auto, shm, unix or tcp; tls is tcp, encrypted, between all ranks", false},
		{Encrypt, "what goes through TLS between nodes: control (default: everything except the data of collectives), all or none", false},
		{AWSAccessKey, "for checkpoints in s3://…: id of the access key", true},
		{AWSSecretKey, "for checkpoints in s3://…: the access key", true},
		{AWSSessionToken, "for checkpoints in s3://…: token of a key for a limited time", true},
		{AWSProfile, "for checkpoints in s3://…: profile of ~/.aws/credentials and ~/.aws/config, if there is no key in the environment (default \"default\")", false},
		{AWSRegion, "for checkpoints in s3://…: region of the bucket, if the address gives none", false},
		{AWSDefaultRegion, "the same, if AWS_REGION is not set", false},
		{AWSEndpointS3, "for checkpoints in s3://…: URL of the server, if the address gives none (default: Amazon's)", false},
		{AWSEndpoint, "the same, if AWS_ENDPOINT_URL_S3 is not set", false},
		{Silence, "silence limit: the time without a word from a rank after which the others give it up (default 3s), while the network works; the same on all ranks; 0 means never, for debuggers", false},
	}
}

// Setting is a variable and its present value.
type Setting struct {
	Var     Var
	Meaning string
	// Value is "(set, not shown)" for a secret.
	Value string
	IsSet bool
}

// List returns every variable that Cohort knows, with its present value.
func List() []Setting {
	all := declarations()
	settings := make([]Setting, len(all))
	for i, d := range all {
		value, ok := d.name.Lookup()
		if ok && d.secret {
			value = "(set, not shown)"
		}
		settings[i] = Setting{Var: d.name, Meaning: d.meaning, Value: value, IsSet: ok}
	}
	return settings
}

// Error says that the value of a variable cannot be used.
type Error struct {
	Var Var
	// Value is the value, empty if the variable is not set.
	Value string
	// Want says which values are accepted.
	Want string
}

func (e *Error) Error() string {
	if e.Value == "" {
		return fmt.Sprintf("environment variable %s is not set: want %s", e.Var, e.Want)
	}
	return fmt.Sprintf("environment variable %s is %q: want %s", e.Var, e.Value, e.Want)
}

// Lookup returns the value without surrounding blanks, and whether there is one.
func (v Var) Lookup() (string, bool) {
	value := strings.TrimSpace(os.Getenv(string(v)))
	return value, value != ""
}

// Text returns the value with its surrounding blanks, which some values have on purpose. It
// is empty if the variable is not set.
func (v Var) Text() string { return os.Getenv(string(v)) }

// IsSet reports whether the variable has a value that is not empty.
func (v Var) IsSet() bool { _, ok := v.Lookup(); return ok }

// IsOn reports whether the variable is set, and not to a word for off: 0, false, no or off,
// in capitals or not.
func (v Var) IsOn() bool {
	value, ok := v.Lookup()
	switch strings.ToLower(value) {
	case "0", "false", "no", "off":
		return false
	}
	return ok
}

// Assign returns "NAME=value", an entry of the environment of a child process.
func (v Var) Assign(value string) string { return string(v) + "=" + value }

// Get returns the value, or fallback if the variable is not set.
func (v Var) Get(fallback string) string {
	if value, ok := v.Lookup(); ok {
		return value
	}
	return fallback
}

// Require returns the value. If the variable is not set, the error says that want is
// accepted.
func (v Var) Require(want string) (string, error) {
	if value, ok := v.Lookup(); ok {
		return value, nil
	}
	return "", &Error{Var: v, Want: want}
}

// Int returns the value as an integer from lo to hi, which it reads as ParseInt does. It is
// an error if the variable is not set.
func (v Var) Int(lo, hi int) (int, error) {
	want := fmt.Sprintf("an integer from %d to %d", lo, hi)
	value, err := v.Require(want)
	if err != nil {
		return 0, err
	}
	n, err := ParseInt(value)
	if err != nil || n < lo || n > hi {
		return 0, &Error{Var: v, Value: clip(value), Want: want}
	}
	return n, nil
}

// IntOr does what Int does, and returns fallback if the variable is not set.
func (v Var) IntOr(fallback, lo, hi int) (int, error) {
	if !v.IsSet() {
		return fallback, nil
	}
	return v.Int(lo, hi)
}

// OneOf returns the value, which must be among choices. It returns the first of them if the
// variable is not set.
func (v Var) OneOf(choices ...string) (string, error) {
	value, ok := v.Lookup()
	if !ok {
		return choices[0], nil
	}
	for _, c := range choices {
		if value == c {
			return value, nil
		}
	}
	return "", &Error{Var: v, Value: clip(value), Want: "one of " + strings.Join(choices, ", ")}
}

// DurationOr returns the value as a duration such as 500ms, 3s or 1m30s. The value is from
// lo to hi, or 0. It returns fallback if the variable is not set.
func (v Var) DurationOr(fallback, lo, hi time.Duration) (time.Duration, error) {
	value, ok := v.Lookup()
	if !ok {
		return fallback, nil
	}
	d, err := time.ParseDuration(value)
	if err != nil || d != 0 && (d < lo || d > hi) {
		return 0, &Error{Var: v, Value: clip(value), Want: fmt.Sprintf("0, or a duration from %v to %v such as 3s", lo, hi)}
	}
	return d, nil
}

// clip shortens a value for an error message.
func clip(value string) string {
	const most = 100
	if len(value) <= most {
		return value
	}
	return value[:most] + "…"
}

// PET is the variable from which a flag of cohort run takes its default, as
// torchrun's flags do: PET_NPROC_PER_NODE for nproc-per-node.
func PET(flag string) Var {
	return Var("PET_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_")))
}

// OutsideJob returns an environment, as of os.Environ, without the variables that are declared
// here: that of a process which is no rank of the job. It keeps what is of the user and not of the
// job: the GPUs, and the credentials of stores.
func OutsideJob(environ []string) []string {
	declared := make(map[string]bool)
	for _, d := range declarations() {
		declared[string(d.name)] = true
	}
	return slices.DeleteFunc(slices.Clone(environ), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return declared[name] && name != string(VisibleGPUs) && !strings.HasPrefix(name, "AWS_")
	})
}
