// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/launch"
	"github.com/cohort-ml/cohort/launch/ssh"
)

// hostFlags are the flags of a job whose launchers ssh starts.
type hostFlags struct {
	hosts, hostFile         string
	copies                  bool
	ssh                     string
	sshTimeout              floatFlag
	remoteCohort, remoteDir string
	exports                 []string
}

// hostFlagNames are the flags that the launchers on the hosts do not get.
var hostFlagNames = []string{"hosts", "hostfile", "copy", "ssh", "ssh-timeout", "remote-cohort", "remote-dir", "export"}

func (f *hostFlags) add(flags *pflag.FlagSet) {
	f.sshTimeout = 60
	flags.StringVar(&f.hosts, "hosts", "", "start the job on these `HOSTS` by ssh, such as a,b:4,node[01-08]:2; the number of ranks is behind a colon")
	flags.StringVar(&f.hostFile, "hostfile", "", "the same, from a `FILE` with a host a line: a slots=4, or a:4")
	flags.BoolVar(&f.copies, "copy", false, "copy this program, and PROGRAM if it is a binary or a Go package, to hosts that do not have them, into ~/.cache/cohort/bin")
	flags.StringVar(&f.ssh, "ssh", "ssh", "`COMMAND` of ssh, with options of its own")
	flags.Var(&f.sshTimeout, "ssh-timeout", "`SECONDS` that a host may take to answer")
	flags.StringVar(&f.remoteCohort, "remote-cohort", "cohort", "`PATH` of Cohort on the hosts")
	flags.StringVar(&f.remoteDir, "remote-dir", "", "`DIR` in which the ranks run on the hosts (default: the present one)")
	flags.StringArrayVar(&f.exports, "export", nil, "`NAME` of a variable that the hosts get too, or NAME=VALUE")
	groupFlags(flags, "Host", hostFlagNames...)
}

func (f *hostFlags) onHosts() bool { return f.hosts != "" || f.hostFile != "" }

// list reads --hosts or --hostfile.
func (f *hostFlags) list() (hosts []ssh.Host, err error) {
	switch {
	case f.hosts != "" && f.hostFile != "":
		return nil, fmt.Errorf("--hosts %s and --hostfile %s contradict each other: leave one out", f.hosts, f.hostFile)
	case f.hosts != "":
		if hosts, err = ssh.ParseHosts(f.hosts); err != nil {
			return nil, fmt.Errorf("--hosts: %w", err)
		}
	default:
		if hosts, err = ssh.ReadHostFile(f.hostFile); err != nil {
			return nil, fmt.Errorf("--hostfile: %w", err)
		}
	}
	return hosts, nil
}

// givenHosts names the flag of the list, as the user wrote it.
func (f *hostFlags) givenHosts() string {
	if f.hosts != "" {
		return "--hosts " + f.hosts
	}
	return "--hostfile " + f.hostFile
}

// sshOptions say how ssh reaches the hosts. They are for other commands, too.
func (f *hostFlags) sshOptions(hosts []ssh.Host, stdout, stderr io.Writer) (ssh.Options, error) {
	o := ssh.Options{
		Hosts: hosts, SSH: strings.Fields(f.ssh), Cohort: f.remoteCohort, Copy: f.copies,
		Version:  version(debug.ReadBuildInfo()),
		Patience: time.Duration(float64(f.sshTimeout) * float64(time.Second)),
		Stdout:   stdout, Stderr: stderr,
	}
	switch {
	case len(o.SSH) == 0:
		return o, errors.New("--ssh: give a command, as in --ssh \"ssh -p 2222\"")
	case strings.ContainsAny(f.ssh, `'"\`):
		return o, fmt.Errorf("--ssh %s: the words of the command are parted at spaces, and quotes are not read: give what has spaces in ~/.ssh/config", f.ssh)
	case !(f.sshTimeout > 0) || f.sshTimeout > 1e6:
		return o, fmt.Errorf("--ssh-timeout %v: give a number of seconds, more than 0", f.sshTimeout)
	case f.copies && f.remoteCohort != "cohort":
		return o, fmt.Errorf("--copy and --remote-cohort %s contradict each other: leave one out", f.remoteCohort)
	}
	return o, nil
}

// variables are what the hosts get of this process's environment.
func (f *hostFlags) variables() (env []string, err error) {
	var names []string
	for _, text := range f.exports {
		name, _, assigned := strings.Cut(text, "=")
		switch {
		case name == "" || strings.ContainsAny(name, " \t,"):
			return nil, fmt.Errorf("--export %q: give the name of one variable, or NAME=VALUE", text)
		case envvar.Var(name) == envvar.Token || envvar.Var(name) == envvar.TokenFile:
			return nil, fmt.Errorf("--export %s: the hosts get the token in any case; leave it out", name)
		case assigned:
			env = append(env, text)
		case !envvar.Var(name).IsSet():
			return nil, fmt.Errorf("--export %s: this variable is not set here; set it, or give %s=VALUE", name, name)
		default:
			names = append(names, name)
		}
	}
	return append(envvar.ForHosts(names), env...), nil
}

// runHosts runs a job on several hosts. This process has no ranks.
func (f *runFlags) runHosts(cmd *cobra.Command, args []string) error {
	if err := f.fromEnvironment(cmd.Flags()); err != nil {
		return usageError{err}
	}
	if f.dashboard.addr != "" {
		return usageError{errors.New("run: --dashboard shows the ranks of one machine, and not those that start by ssh: start one launcher a machine (--nnodes), and give --dashboard to each")}
	}
	hosts, err := f.list()
	if err == nil {
		err = f.fitsHosts(hosts)
	}
	if err != nil {
		return usageError{err}
	}
	signals, err := launch.ParseSignals(f.sigset)
	if err != nil {
		return usageError{fmt.Errorf("--signals-to-handle %s: %w", f.sigset, err)}
	}
	stderr := cmd.ErrOrStderr()
	opts, err := f.sshOptions(hosts, cmd.OutOrStdout(), stderr)
	if err != nil {
		return usageError{err}
	}
	env, err := f.variables()
	if err != nil {
		return usageError{err}
	}
	token, err := f.mpiToken()
	if err != nil {
		return usageError{err}
	}
	launch.KeepSecrets()
	ch := make(chan os.Signal, 8)
	signal.Notify(ch, syscall.SIGUSR1)
	for _, s := range signals {
		if s != syscall.SIGHUP || !signal.Ignored(s) {
			signal.Notify(ch, s)
		}
	}
	defer signal.Stop(ch)
	program, clean, err := f.localProgram(cmd.Context(), args, stderr)
	if err != nil {
		return usageError{err}
	}
	defer clean()
	if program != "" && program != selfProgram {
		opts.Files = []string{program}
	}
	fleet, stopped, err := connect(cmd.Context(), opts, ch)
	switch {
	case stopped != nil:
		return fmt.Errorf("run: stopped by %v before the job began", stopped)
	case err != nil:
		return usageError{fmt.Errorf("run: %w", err)}
	}
	defer fleet.Close()
	orders, where, err := f.orders(cmd.Flags(), fleet, args, program)
	if err != nil {
		return usageError{fmt.Errorf("run: %w", err)}
	}
	for i := range orders {
		orders[i].Env, orders[i].Token = env, token.Text()
	}
	fmt.Fprintf(stderr, "cohort: %s\n", where)
	results := fleet.Run(cmd.Context(), orders, ssh.Terms{Least: f.minNodes, Grace: time.Duration(float64(f.shutdown) * float64(time.Second)), Signals: ch})
	return f.ended(results)
}

// connect reaches the hosts. A signal ends that.
func connect(ctx context.Context, opts ssh.Options, signals <-chan os.Signal) (fleet *ssh.Fleet, stopped os.Signal, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		fleet, err = ssh.Connect(ctx, opts)
	}()
	for {
		select {
		case <-done:
			if stopped != nil && fleet != nil {
				fleet.Close()
			}
			return fleet, stopped, err
		case s := <-signals:
			if s != syscall.SIGUSR1 {
				stopped = s
				cancel()
			}
		}
	}
}

// fitsHosts refuses flags that contradict a list of hosts, and sets the number of machines.
func (f *runFlags) fitsHosts(hosts []ssh.Host) (err error) {
	for _, name := range []string{"node-rank", "standalone", "mpi", "local-addr"} {
		if f.has(name) {
			return fmt.Errorf("%s and %s contradict each other: leave one out", f.given(name), f.givenHosts())
		}
	}
	n := len(hosts)
	if !f.has("nnodes") {
		f.minNodes, f.maxNodes = n, n
	} else if f.minNodes, f.maxNodes, err = parseNodes(f.numNodes); err != nil {
		return fmt.Errorf("%s: %w", f.given("nnodes"), err)
	} else if f.maxNodes != n {
		return fmt.Errorf("%s and %s contradict each other: the list has %d hosts; leave --nnodes out", f.given("nnodes"), f.givenHosts(), n)
	}
	if f.minNodes < f.maxNodes && f.backend == "static" {
		if f.has("rdzv-backend") || f.has("master-addr") || f.has("master-port") {
			return fmt.Errorf("%s and %s contradict each other: with static, nobody comes or goes; leave one out", strings.Join(f.anyOf("rdzv-backend", "master-addr", "master-port"), " "), f.given("nnodes"))
		}
		f.backend = "c10d"
	}
	if f.backend != "static" && (f.has("master-addr") || f.has("master-port")) {
		return fmt.Errorf("%s and %s contradict each other: with %s the launchers meet at --rdzv-endpoint HOST:PORT; leave one out", strings.Join(f.anyOf("master-addr", "master-port"), " "), f.given("rdzv-backend"), f.backend)
	}
	for _, h := range hosts {
		if h.Slots > 0 && len(f.programs) > 0 {
			return fmt.Errorf("--program and host %s:%d contradict each other: each program has its number of ranks in front; leave the one of the host out", h.Name, h.Slots)
		}
	}
	return nil
}

// selfProgram stands for a PROGRAM that is this binary.
const selfProgram = "cohort"

// localProgram returns the binary that --copy copies as PROGRAM: it builds it, or finds it.
// Scripts are not copied.
func (f *runFlags) localProgram(ctx context.Context, args []string, stderr io.Writer) (path string, clean func(), err error) {
	clean = func() {}
	if !f.copies || len(args) == 0 || f.module || f.runPath {
		return "", clean, nil
	}
	info, err := os.Stat(args[0])
	if err == nil && (info.IsDir() || strings.HasSuffix(args[0], ".go")) && !f.noPython {
		dir, err := os.MkdirTemp("", "cohort-build-")
		if err != nil {
			return "", clean, err
		}
		clean = func() { _ = os.RemoveAll(dir) }
		fmt.Fprintf(stderr, "cohort: building %s\n", args[0])
		from, target := args[0], "."
		if !info.IsDir() {
			from, target = filepath.Dir(args[0]), filepath.Base(args[0])
		}
		abs, err := filepath.Abs(args[0])
		if err != nil {
			return "", clean, err
		}
		path := filepath.Join(dir, strings.TrimSuffix(filepath.Base(abs), ".go"))
		build := exec.CommandContext(ctx, "go", "build", "-o", path, target)
		build.Dir, build.Env = from, envvar.WithoutToken()
		if out, err := build.CombinedOutput(); err != nil {
			clean()
			return "", func() {}, fmt.Errorf("go build %s: %w: %s", args[0], err, bytes.ReplaceAll(bytes.TrimSpace(out), []byte("\n"), []byte("; ")))
		}
		return path, clean, nil
	}
	found, err := exec.LookPath(args[0])
	if err != nil { // the hosts may have it
		return "", clean, nil
	}
	if self, err := os.Executable(); err == nil {
		a, err1 := os.Stat(self)
		b, err2 := os.Stat(found)
		if err1 == nil && err2 == nil && os.SameFile(a, b) {
			return selfProgram, clean, nil
		}
	}
	if !isBinary(found) {
		return "", clean, nil
	}
	return found, clean, nil
}

// isBinary reports whether a file is a program of this kind of system, and no script.
func isBinary(path string) bool {
	file, err := os.Open(path)
	if err != nil {
		return false
	}
	defer file.Close()
	head := make([]byte, 4)
	if _, err := io.ReadFull(file, head); err != nil {
		return false
	}
	return slices.ContainsFunc([]string{"\x7fELF", "\xcf\xfa\xed\xfe", "\xca\xfe\xba\xbe"}, func(m string) bool { return string(head) == m })
}

// orders makes the command of each host. where says what the job is, for the user.
func (f *runFlags) orders(set *pflag.FlagSet, fleet *ssh.Fleet, args []string, program string) (orders []ssh.Order, where string, err error) {
	flags := f.passed(set, len(fleet.Connections) == 1)
	n := len(fleet.Connections)
	meet := ""
	if n > 1 {
		if meet, err = f.meetAt(fleet); err != nil {
			return nil, "", err
		}
	}
	dir := f.remoteDir
	if dir == "" {
		if dir, err = os.Getwd(); err != nil {
			return nil, "", err
		}
	}
	var names []string
	for i, c := range fleet.Connections {
		o := ssh.Order{Dir: dir, Args: append([]string{"run"}, flags...)}
		name := c.Host.Name
		switch {
		case c.Host.Slots > 0:
			o.Args = append(o.Args, "--nproc-per-node", strconv.Itoa(c.Host.Slots))
			name += fmt.Sprintf(":%d", c.Host.Slots)
		case len(f.programs) > 0:
		default:
			o.Args = append(o.Args, "--nproc-per-node", f.numRanks)
			name += ":" + f.numRanks
		}
		names = append(names, name)
		if n > 1 {
			o.Args = append(o.Args, "--nnodes", fmt.Sprintf("%d:%d", f.minNodes, f.maxNodes))
			host, port, _ := net.SplitHostPort(meet)
			switch {
			case f.backend == "static" && f.endpoint == "":
				o.Args = append(o.Args, "--node-rank", strconv.Itoa(i), "--master-addr", host, "--master-port", port)
			case f.backend == "static":
				o.Args = append(o.Args, "--node-rank", strconv.Itoa(i), "--rdzv-endpoint", f.endpoint)
			default:
				o.Args = append(o.Args, "--rdzv-backend", f.backend, "--rdzv-endpoint", meet)
			}
		}
		words := slices.Clone(args)
		if program != "" {
			words[0] = fleet.Copies[i][0]
			if program != selfProgram {
				words[0] = fleet.Copies[i][1]
				o.Program = words[0]
				if o.Sum, err = ssh.SumOf(program); err != nil {
					return nil, "", err
				}
			}
		}
		o.Args = append(o.Args, words...)
		orders = append(orders, o)
	}
	const most = 8
	if len(names) > most {
		names = append(names[:most], fmt.Sprintf("and %d more", len(names)-most))
	}
	count := "1 host"
	if n > 1 {
		count = fmt.Sprintf("%d hosts", n)
	}
	where = fmt.Sprintf("%s by ssh (%s): %s", count, f.givenHosts(), strings.Join(names, ", "))
	if meet != "" {
		where += "; they meet at " + meet
	}
	return orders, where, nil
}

// passed are the flags of the user that every host gets. One host alone also gets where it
// meets nobody: its ranks see the port, and etcd is asked.
func (f *runFlags) passed(set *pflag.FlagSet, alone bool) (flags []string) {
	set.Visit(func(flag *pflag.Flag) {
		switch flag.Name {
		case "token-file", "nnodes", "nproc-per-node":
			return
		case "master-addr", "master-port", "rdzv-endpoint", "rdzv-backend":
			if !alone {
				return
			}
		}
		if slices.Contains(hostFlagNames, flag.Name) {
			return
		}
		if list, ok := flag.Value.(pflag.SliceValue); ok {
			for _, one := range list.GetSlice() {
				flags = append(flags, "--"+flag.Name+"="+one)
			}
			return
		}
		flags = append(flags, "--"+flag.Name+"="+flag.Value.String())
	})
	return flags
}

// meetAt says where the launchers meet: on the first host, unless the user says it.
func (f *runFlags) meetAt(fleet *ssh.Fleet) (string, error) {
	if f.endpoint != "" {
		return f.endpoint, nil
	}
	if f.backend != "static" && f.backend != "c10d" {
		return "", fmt.Errorf("%s: give --rdzv-endpoint", f.given("rdzv-backend"))
	}
	first := fleet.Connections[0]
	addr, port := f.masterAddr, int(f.masterPort)
	if !f.has("master-addr") || f.backend != "static" {
		var err error
		if addr, err = first.Addr(); err != nil {
			return "", err
		}
	}
	if !f.has("master-port") || f.backend != "static" {
		port = first.Hello.Port
	}
	if port == 0 {
		return "", fmt.Errorf("host %s has no free port: give --master-port PORT", first.Host.Name)
	}
	return net.JoinHostPort(addr, strconv.Itoa(port)), nil
}

// ended makes an error of the ends of all hosts. The hosts have written why.
func (f *runFlags) ended(results []ssh.Result) error {
	good, code := 0, 0
	var texts []string
	for _, r := range results {
		switch {
		case r.OK():
			good++
		case r.Lost != nil:
			texts = append(texts, fmt.Sprintf("host %s: %v", r.Host, r.Lost))
		default:
			code = max(code, r.Code)
			texts = append(texts, fmt.Sprintf("host %s ended with code %d", r.Host, r.Code))
		}
	}
	if good >= f.minNodes {
		return nil
	}
	const most = 8
	if len(texts) > most {
		texts = append(texts[:most], fmt.Sprintf("and %d more", len(texts)-most))
	}
	err := fmt.Errorf("run: %s", strings.Join(texts, "; "))
	if code == exitUsage {
		return usageError{err}
	}
	return err
}

func newHostAgentCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "host-agent",
		Short: "Run a command of Cohort for another host, which says over ssh what to run",
		Long: `"cohort run --hosts" starts this command on each host by ssh. It says on standard
output which version it is, reads from standard input what to run, and ends it
when standard input ends.`,
		Hidden: true,
		Args:   noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			os.Exit(ssh.Serve(os.Stdin, os.Stdout, os.Stderr, version(debug.ReadBuildInfo()), func(args []string, stdout, stderr io.Writer) int {
				launch.KeepSecrets() // not earlier: it hides this process's namespaces from itself
				return run(args, stdout, stderr)
			}))
			return nil
		},
	}
}
