// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"math"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/launch"
	"github.com/cohort-ml/cohort/launch/rendezvous"
)

// torchrunFlags are the flags of torchrun. As in torchrun, each takes its default
// from an environment variable: PET_ and the flag's name.
type torchrunFlags struct {
	numRanks, numNodes                   string
	nodeRank, masterPort, maxRestarts    intFlag
	backend, endpoint, runID, conf       string
	masterAddr, localAddr                string
	standalone, module, noPython         bool
	runPath, virtualLocalRank            bool
	role, startMethod, events            string
	shutdown, interval                   floatFlag
	logDir, redirects, tee               string
	prefix, localRanks                   string
	stdoutFilters, stderrFilters, sigset string
	binding                              string

	// What config has read.
	minNodes, maxNodes int
	rdzvConf           map[string]string
	set                *pflag.FlagSet
	pet                map[string]bool   // flags that a variable has set
	placed             map[string]string // flags that a scheduler has set, with what it says
}

// elsewhere has the flags of torchrun without a counterpart, and what to do instead.
var elsewhere = map[string]string{
	"logs-specs":       "it names a Python plug-in; --log-dir, --redirects and --tee say where output goes",
	"print-completion": "cohort completion prints such a script",
}

func (f *torchrunFlags) add(flags *pflag.FlagSet) {
	f.shutdown, f.interval = 30, 0.1
	flags.StringVar(&f.numRanks, "nproc-per-node", "1", "ranks to start on this machine: a number, cpu (one for each core), gpu (one for each GPU), or auto (gpu if there is a GPU, else cpu)")
	flags.StringVar(&f.binding, "numa-binding", "", "processors that each rank is bound to, of the NUMA node of its GPU or, without one, of the nodes in turn")
	flags.BoolVar(&f.virtualLocalRank, "virtual-local-rank", false, "every rank has LOCAL_RANK 0 and sees one GPU")
	flags.StringVar(&f.role, "role", "default", "`NAME` of the ranks' role, which they find in ROLE_NAME")
	oneOf(flags, "nproc-per-node", "N", "cpu", "gpu", "auto")
	oneOf(flags, "numa-binding", "node", "socket", "exclusive", "core-complex")
	groupFlags(flags, "Rank", "nproc-per-node", "numa-binding", "virtual-local-rank", "role")

	flags.BoolVarP(&f.module, "module", "m", false, "PROGRAM is the name of a Python module, as for python3 -m")
	flags.BoolVar(&f.runPath, "run-path", false, "PROGRAM is a Python script, whatever its name ends with")
	flags.BoolVar(&f.noPython, "no-python", false, "PROGRAM is an executable, whatever its name ends with")
	groupFlags(flags, "Program", "module", "run-path", "no-python")

	flags.Var(&f.maxRestarts, "max-restarts", "start all ranks again after a failure, at most `N` times")
	flags.Var(&f.shutdown, "shutdown-timeout", "`SECONDS` that a rank has to end after a signal, before SIGKILL")
	flags.StringVar(&f.sigset, "signals-to-handle", "SIGTERM,SIGINT,SIGHUP,SIGQUIT", "`SIGNALS` that end the job; the ranks get the signal too")
	groupFlags(flags, "Failure", "max-restarts", "shutdown-timeout", "signals-to-handle")

	flags.StringVar(&f.logDir, "log-dir", "", "`DIR` for log files and error files; each run makes a new directory in it (/dev/null: no files)")
	flags.StringVarP(&f.redirects, "redirects", "r", "0", "`STREAMS` that go to files: 1 stdout, 2 stderr, 3 both; or by local rank, such as 0:3,1:2")
	flags.StringVarP(&f.tee, "tee", "t", "0", "`STREAMS` that go to files and to the terminal, written as for --redirects")
	flags.StringVar(&f.localRanks, "local-ranks-filter", "", "show the output of these local `RANKS` only, such as 0,1 (default: all)")
	flags.StringVar(&f.prefix, "log-line-prefix-template", "", "begin each line on the terminal with `TEXT`, in which ${role_name}, ${rank}, ${local_rank} and ${hostname} are replaced")
	flags.StringVar(&f.stdoutFilters, "duplicate-stdout-filters", "", "copy lines of teed standard output that contain one of these `TEXTS` to filtered_stdout.log; commas part the texts (,, is a comma)")
	flags.StringVar(&f.stderrFilters, "duplicate-stderr-filters", "", "copy lines of teed standard error that contain one of these `TEXTS` to filtered_stderr.log")
	groupFlags(flags, "Output", "log-dir", "redirects", "tee", "local-ranks-filter", "log-line-prefix-template", "duplicate-stdout-filters", "duplicate-stderr-filters")

	flags.StringVar(&f.numNodes, "nnodes", "1:1", "number of machines of the job, or the least and the most if machines may come and go")
	flags.StringVar(&f.backend, "rdzv-backend", "static", "how the machines meet; one machine meets nobody")
	flags.StringVar(&f.endpoint, "rdzv-endpoint", "", "`HOST:PORT` where the machines meet, or the path of a shared file")
	flags.StringVar(&f.runID, "rdzv-id", "none", "`NAME` of the job, the same on all machines")
	flags.StringVar(&f.conf, "rdzv-conf", "", "`KEY=VALUE,...` of how the machines meet, such as join_timeout=60,last_call_timeout=5")
	flags.StringVar(&f.localAddr, "local-addr", "", "`ADDRESS` at which the others reach this machine")
	flags.Var(&f.nodeRank, "node-rank", "with --rdzv-backend static: number of this machine; machine 0 serves the store in which all meet")
	flags.StringVar(&f.masterAddr, "master-addr", "127.0.0.1", "with --rdzv-backend static: `ADDRESS` of machine 0, where rank 0 listens")
	flags.Var(&f.masterPort, "master-port", "with --rdzv-backend static: `PORT` that rank 0 listens on (default: a free one on one machine, 29500 on several)")
	flags.BoolVar(&f.standalone, "standalone", false, "a job of this machine alone, on a free port and with a random --rdzv-id; the flags --rdzv-*, --master-* and --node-rank have no effect")
	oneOf(flags, "rdzv-backend", "static", "c10d", "etcd", "file")
	oneOf(flags, "nnodes", "N", "MIN:MAX")
	groupFlags(flags, "Machine", "nnodes", "rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf", "local-addr", "node-rank", "master-addr", "master-port", "standalone")

	flags.Var(&f.interval, "monitor-interval", "`SECONDS` between looks at the ranks; cohort sees their ends at once")
	flags.StringVar(&f.startMethod, "start-method", "spawn", "how a rank is started; cohort always makes a new process")
	flags.StringVar(&f.events, "event-log-handler", "null", "`HANDLER` of events; null is the only one")
	oneOf(flags, "start-method", "spawn", "fork", "forkserver")
	groupFlags(flags, "Ignored torchrun", "monitor-interval", "start-method", "event-log-handler")

	for _, name := range slices.Sorted(maps.Keys(elsewhere)) {
		flags.String(name, "", elsewhere[name])
		flags.Lookup(name).Hidden = true
	}
}

// notPET are the flags without an environment variable: those that only cohort run
// has, and those that have none in torchrun either.
var notPET = []string{"help", "token-file", "survivors", "notice-file", "notice-url", "logs-specs", "numa-binding", "print-completion", "program", "store", "mpi", "env-check", "env-file",
	"hosts", "hostfile", "copy", "ssh", "ssh-timeout", "remote-cohort", "remote-dir", "export", "dashboard", "dashboard-run"}

// fromEnvironment sets the flags that are not on the command line to the values of
// their environment variables.
func (f *torchrunFlags) fromEnvironment(set *pflag.FlagSet) (err error) {
	f.set, f.pet = set, map[string]bool{}
	set.VisitAll(func(flag *pflag.Flag) {
		if err != nil || flag.Changed || slices.Contains(notPET, flag.Name) {
			return
		}
		name := envvar.PET(flag.Name)
		value, ok := name.Lookup()
		if !ok {
			return
		}
		if slices.Contains([]string{"log-line-prefix-template", "duplicate-stdout-filters", "duplicate-stderr-filters"}, flag.Name) {
			value = name.Text()
		}
		if flag.Value.Type() == "bool" { // torchrun reads a number
			n, bad := envvar.ParseInt(value)
			if bad != nil {
				err = fmt.Errorf("environment variable %s is %q: want 0 or 1", name, value)
				return
			}
			value = strconv.FormatBool(n != 0)
		}
		if e := set.Set(flag.Name, value); e != nil {
			why := e
			for inner := errors.Unwrap(why); inner != nil; inner = errors.Unwrap(why) {
				why = inner
			}
			err = fmt.Errorf("environment variable %s is %q, which is not a value of --%s: %w", name, value, flag.Name, why)
			return
		}
		f.pet[flag.Name] = true
	})
	return err
}

// given returns a flag and its value in the form that the user gave: "--nnodes 2" or
// "PET_NNODES=2".
func (f *torchrunFlags) given(name string) string {
	flag := f.set.Lookup(name)
	switch {
	case f.placed[name] != "":
		return f.placed[name]
	case f.pet[name]:
		return envvar.PET(name).Assign(flag.Value.String())
	case flag.Value.Type() == "bool":
		return "--" + name
	default:
		return "--" + name + " " + flag.Value.String()
	}
}

func (f *torchrunFlags) has(name string) bool { return f.set.Changed(name) }

// anyOf returns those of the flags that the user gave.
func (f *torchrunFlags) anyOf(names ...string) (given []string) {
	for _, name := range names {
		if f.has(name) {
			given = append(given, f.given(name))
		}
	}
	return given
}

// config checks the flags and makes a launch configuration of them.
func (f *torchrunFlags) config(set *pflag.FlagSet) (cfg launch.Config, notices []string, err error) {
	for _, name := range slices.Sorted(maps.Keys(elsewhere)) {
		if f.has(name) {
			return cfg, nil, fmt.Errorf("--%s is a flag of torchrun that cohort run does not have: %s", name, elsewhere[name])
		}
	}
	for _, text := range []*string{&f.endpoint, &f.localAddr, &f.masterAddr} {
		*text = strings.TrimSpace(*text)
	}
	cfg = launch.Config{
		MasterAddr: f.masterAddr, MasterPort: int(f.masterPort), RunID: f.runID, Role: f.role,
		Module: f.module, Direct: f.noPython && !f.runPath, Script: f.runPath,
		MaxRestarts: int(f.maxRestarts), VirtualLocalRank: f.virtualLocalRank,
	}
	for _, step := range []func(*launch.Config) ([]string, error){f.contradictions, f.ranks, f.meeting, f.process} {
		more, err := step(&cfg)
		if err != nil {
			return cfg, nil, err
		}
		notices = append(notices, more...)
	}
	return cfg, notices, nil
}

// contradictions reports flags that contradict each other, and gives notice of flags that
// have no effect beside another one.
func (f *torchrunFlags) contradictions(*launch.Config) (notices []string, err error) {
	if f.minNodes, f.maxNodes, err = parseNodes(f.numNodes); err != nil {
		return nil, fmt.Errorf("%s: %w", f.given("nnodes"), err)
	}
	switch {
	case f.module && f.noPython:
		return nil, fmt.Errorf("%s and %s contradict each other: leave one out", f.given("module"), f.given("no-python"))
	case f.module && f.runPath:
		return nil, fmt.Errorf("%s and %s contradict each other: leave one out", f.given("module"), f.given("run-path"))
	case f.standalone && f.maxNodes > 1:
		return nil, fmt.Errorf("%s and %s contradict each other: a job of several machines is not one of this machine alone; leave one out", f.given("standalone"), f.given("nnodes"))
	case f.backend == "static" && !f.standalone && f.minNodes != f.maxNodes:
		return nil, fmt.Errorf("%s and %s contradict each other: with static, nobody comes or goes; give one number of machines, or another backend, such as c10d", f.given("nnodes"), f.given("rdzv-backend"))
	case f.nodeRank < 0:
		return nil, fmt.Errorf("%s: ranks begin with 0", f.given("node-rank"))
	case f.backend == "static" && !f.standalone && int(f.nodeRank) >= f.maxNodes:
		return nil, fmt.Errorf("%s and %s contradict each other: the ranks of machines are 0 to %d", f.given("node-rank"), f.given("nnodes"), f.maxNodes-1)
	case f.has("master-port") && (f.masterPort < 1 || f.masterPort > 65535):
		return nil, fmt.Errorf("%s: ports are 1 to 65535; leave it out for a free one", f.given("master-port"))
	}
	if f.runPath {
		notices = f.idle(notices, "beside "+f.given("run-path"), "no-python")
	}
	meet := []string{"rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf", "master-addr", "master-port", "node-rank"}
	switch {
	case f.standalone:
		if f.backend == "c10d" { // torchrun itself uses it with --standalone
			meet = meet[1:]
		}
		notices = f.idle(notices, "beside "+f.given("standalone"), meet...)
	case f.several():
		if f.backend != "static" {
			notices = f.idle(notices, "beside "+f.given("rdzv-backend")+": it is for static", "node-rank", "master-addr", "master-port")
		}
	case f.backend == "c10d":
		notices = f.idle(notices, "beside "+f.given("rdzv-backend")+": it is for static", "node-rank", "master-addr", "master-port")
		notices = f.idle(notices, "on one machine, which meets no other", "rdzv-endpoint", "rdzv-conf")
	default:
		notices = f.idle(notices, "on one machine, which meets no other", "rdzv-conf")
		notices = f.idle(notices, "with --rdzv-backend static and one machine: --master-addr says where rank 0 listens", "local-addr")
	}
	return notices, nil
}

// idle adds a notice for each of some flags that is given and has no effect. why is
// the end of the notice.
func (f *torchrunFlags) idle(notices []string, why string, names ...string) []string {
	for _, flag := range f.anyOf(names...) {
		notices = append(notices, flag+" has no effect "+why)
	}
	return notices
}

// parseNodes reads N or MIN:MAX.
func parseNodes(text string) (least, most int, err error) {
	lo, hi, isRange := strings.Cut(text, ":")
	if !isRange {
		hi = lo
	}
	least, err = envvar.ParseInt(lo)
	most, err2 := envvar.ParseInt(hi)
	if errors.Join(err, err2) != nil || least < 1 || most < least || most > rendezvous.MaxNodes {
		return 0, 0, fmt.Errorf("give the number of machines, 1 to %d, or the least and the most, as in 2:4", rendezvous.MaxNodes)
	}
	return least, most, nil
}

// ranks says how many ranks this machine has.
func (f *torchrunFlags) ranks(cfg *launch.Config) ([]string, error) {
	kind := strings.TrimSpace(f.numRanks)
	gpus := 0
	if kind == "gpu" || kind == "auto" {
		var err error
		if gpus, err = numGPUs(); err != nil {
			return nil, err
		}
	}
	switch kind {
	case "auto", "cpu":
		cfg.NumRanks = runtime.NumCPU()
		if gpus > 0 {
			cfg.NumRanks = gpus
		}
	case "gpu":
		if cfg.NumRanks = gpus; gpus == 0 {
			return nil, fmt.Errorf("%s: this machine has no GPU that ranks may use (/proc/driver/nvidia/gpus, %s); give a number, cpu or auto", f.given("nproc-per-node"), envvar.VisibleGPUs)
		}
	case "xpu":
		return nil, fmt.Errorf("%s: Intel's GPUs are not counted; give a number, cpu, gpu or auto", f.given("nproc-per-node"))
	default:
		n, err := envvar.ParseInt(kind)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%s: give a number of at least 1, cpu, gpu or auto", f.given("nproc-per-node"))
		}
		cfg.NumRanks = n
	}
	if f.maxRestarts < 0 {
		return nil, fmt.Errorf("%s: give 0 or more", f.given("max-restarts"))
	}
	return nil, nil
}

// meeting says where ranks, and machines, meet.
func (f *torchrunFlags) meeting(cfg *launch.Config) ([]string, error) {
	var err error
	if f.rdzvConf, err = parseConf(f.conf); err != nil {
		return nil, fmt.Errorf("%s: %w", f.given("rdzv-conf"), err)
	}
	if f.standalone {
		f.backend, f.endpoint, f.nodeRank = "static", "", 0
		cfg.MasterAddr, cfg.MasterPort, cfg.RunID = "", 0, rand.Text()
		if f.localAddr != "" {
			cfg.MasterAddr = f.localAddr
		}
		return nil, nil
	}
	backends := []string{"static", "c10d", "etcd", "etcd-v2", "file"}
	if !slices.Contains(backends, f.backend) {
		return nil, fmt.Errorf("%s: there are %s", f.given("rdzv-backend"), strings.Join(backends, ", "))
	}
	if f.several() {
		return nil, nil
	}
	if f.backend == "c10d" {
		if cfg.MasterAddr, cfg.MasterPort = "", 0; f.localAddr != "" {
			cfg.MasterAddr = f.localAddr
		}
	}
	if f.endpoint == "" {
		return nil, nil
	}
	host, port, err := localEndpoint(f.endpoint)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.given("rdzv-endpoint"), err)
	}
	if f.backend == "c10d" { // on one machine nobody meets there
		return nil, nil
	}
	if f.has("master-addr") && host != cfg.MasterAddr || f.has("master-port") && port != 0 && port != cfg.MasterPort {
		return nil, fmt.Errorf("%s is not what %s say: leave out either", f.given("rdzv-endpoint"), strings.Join(f.anyOf("master-addr", "master-port"), " and "))
	}
	cfg.MasterAddr = host
	if port != 0 {
		cfg.MasterPort = port
	}
	return nil, nil
}

// parseConf reads key=value pairs with commas between them.
func parseConf(text string) (map[string]string, error) {
	conf := map[string]string{}
	if strings.TrimSpace(text) == "" {
		return conf, nil
	}
	for pair := range strings.SplitSeq(text, ",") {
		key, value, _ := strings.Cut(pair, "=")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		if key == "" || value == "" {
			return nil, fmt.Errorf("%q is no key=value: give such pairs with commas between them", pair)
		}
		conf[key] = value
	}
	return conf, nil
}

// process says how ranks are started and ended.
func (f *torchrunFlags) process(cfg *launch.Config) (notices []string, err error) {
	if !slices.Contains([]string{"spawn", "fork", "forkserver"}, f.startMethod) {
		return nil, fmt.Errorf("%s: there are spawn, fork and forkserver, which are the same here", f.given("start-method"))
	}
	if f.events != "null" {
		return nil, fmt.Errorf("%s: there are no events to handle, only null; the report on standard error and the exit code say how the job ended", f.given("event-log-handler"))
	}
	if !(f.interval >= 0) || math.IsInf(float64(f.interval), 0) {
		return nil, fmt.Errorf("%s: give a number of seconds, of at least 0", f.given("monitor-interval"))
	}
	if f.binding != "" {
		if cfg.Binding, err = launch.ParseBinding(f.binding); err != nil {
			return nil, fmt.Errorf("%s: %w", f.given("numa-binding"), err)
		}
	}
	if cfg.Signals, err = launch.ParseSignals(f.sigset); err != nil {
		return nil, fmt.Errorf("%s: %w", f.given("signals-to-handle"), err)
	}
	shutdown, name := float64(f.shutdown), ""
	if !f.has("shutdown-timeout") {
		if text, ok := envvar.ShutdownTimeout.Lookup(); ok {
			name = envvar.ShutdownTimeout.Assign(text)
			if shutdown, err = envvar.ParseFloat(text); err != nil {
				shutdown = -1
			}
		}
	} else {
		name = f.given("shutdown-timeout")
	}
	if !(shutdown >= 0) || shutdown > math.MaxInt32 {
		return nil, fmt.Errorf("%s: give a number of seconds, of at least 0", name)
	}
	cfg.Grace = max(1, time.Duration(shutdown*float64(time.Second))) // 0 would be the default
	if f.startMethod != "spawn" {
		notices = f.idle(notices, "here: every rank is a new process", "start-method")
	}
	if f.interval != 0.1 {
		notices = f.idle(notices, "here: the end of a rank is seen at once", "monitor-interval")
	}
	return notices, nil
}

// output says where the output of the ranks goes, which there are numRanks of here.
func (f *torchrunFlags) output(cfg *launch.Config, numRanks int) (notices []string, err error) {
	cfg.Logs = launch.Logs{
		Dir:           f.logDir,
		StdoutFilters: filters(f.stdoutFilters), StderrFilters: filters(f.stderrFilters),
		Prefix: f.prefix,
	}
	if f.prefix == "" {
		cfg.Logs.Prefix = envvar.LinePrefixTemplate.Text()
	}
	if cfg.Logs.Redirects, err = launch.ParseRankStreams(f.redirects); err != nil {
		return nil, fmt.Errorf("--redirects %w", err)
	}
	if cfg.Logs.Tee, err = launch.ParseRankStreams(f.tee); err != nil {
		return nil, fmt.Errorf("--tee %w", err)
	}
	if f.localRanks != "" {
		for text := range strings.SplitSeq(f.localRanks, ",") {
			n, err := envvar.ParseInt(text)
			if err != nil || n < 0 || n > math.MaxUint16 {
				return nil, fmt.Errorf("%s: give local ranks with commas between them, as in 0,1", f.given("local-ranks-filter"))
			}
			cfg.Logs.LocalRanks = append(cfg.Logs.LocalRanks, n)
		}
	}
	for name, ranks := range map[string][]int{
		"redirects":          slices.Collect(maps.Keys(cfg.Logs.Redirects)),
		"tee":                slices.Collect(maps.Keys(cfg.Logs.Tee)),
		"local-ranks-filter": cfg.Logs.LocalRanks,
	} {
		if n := slices.Max(append(ranks, 0)); n >= numRanks {
			notices = append(notices, fmt.Sprintf("%s names local rank %d: this machine has 0 to %d", f.given(name), n, numRanks-1))
		}
	}
	slices.Sort(notices)
	files := []struct {
		name string
		on   bool // it asks for files
		teed launch.Streams
	}{
		{"redirects", f.redirects != "0", 0},
		{"tee", f.tee != "0", 0},
		{"duplicate-stdout-filters", f.stdoutFilters != "", launch.Stdout},
		{"duplicate-stderr-filters", f.stderrFilters != "", launch.Stderr},
	}
	for _, flag := range files {
		var teed launch.Streams
		for rank := range numRanks {
			teed |= cfg.Logs.Tee.Of(rank)
		}
		switch {
		case !flag.on:
		case f.logDir == os.DevNull:
			notices = f.idle(notices, "beside "+f.given("log-dir")+", which keeps no files", flag.name)
		case teed&flag.teed != flag.teed:
			notices = f.idle(notices, "without --tee of that stream", flag.name)
		}
	}
	return notices, nil
}

// filters splits a list at its commas; two of them are one that belongs to a text.
func filters(list string) []string {
	if list == "" {
		return nil
	}
	const comma = "\x00" // no argument has one
	out := strings.Split(strings.ReplaceAll(list, ",,", comma), ",")
	for i := range out {
		out[i] = strings.ReplaceAll(out[i], comma, ",")
	}
	return out
}

// numGPUs is how many GPUs of this machine ranks may use.
func numGPUs() (int, error) {
	cards, err := os.ReadDir("/proc/driver/nvidia/gpus")
	if err != nil {
		return 0, nil // no driver
	}
	list, ok := envvar.VisibleGPUs.Lookup()
	if !ok {
		return len(cards), nil
	}
	n := 0
	for name := range strings.SplitSeq(list, ",") {
		if name = strings.TrimSpace(name); name == "" || strings.HasPrefix(name, "-") {
			break // as the driver reads it
		}
		n++
	}
	return n, nil
}

// localEndpoint reads host:port, or a host alone, which must be this machine.
func localEndpoint(text string) (host string, port int, err error) {
	host = text
	if h, p, err := net.SplitHostPort(text); err == nil {
		host = h
		n, err := envvar.ParseInt(p)
		if err != nil || n < 0 || n > math.MaxUint16 {
			return "", 0, fmt.Errorf("port %q: want 0 to 65535", p)
		}
		port = n
	}
	host = strings.Trim(host, "[]")
	if host == "" || host == "localhost" {
		return "127.0.0.1", port, nil
	}
	if name, err := os.Hostname(); err == nil && host == name {
		return host, port, nil
	}
	ip, err := netip.ParseAddr(host)
	if err == nil && ip.IsLoopback() {
		return host, port, nil
	}
	if addrs, e := net.InterfaceAddrs(); err == nil && e == nil {
		for _, a := range addrs {
			if own, e := netip.ParsePrefix(a.String()); e == nil && own.Addr().Unmap() == ip.Unmap() {
				return host, port, nil
			}
		}
	}
	return "", 0, fmt.Errorf("%q is not this machine, and the job has no other: give localhost, its name or one of its addresses, or say --nnodes", host)
}
