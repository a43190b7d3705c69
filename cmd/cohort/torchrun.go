// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"math"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/cohort-ml/cohort/launch"
)

// torchrunFlags are flags of torchrun that mean little on one machine, so that
// command lines written for it work, or say why they do not.
type torchrunFlags struct {
	backend, endpoint, conf string
	role                    string
	shutdown                float64
	interval                float64
	startMethod             string
}

// notHere are flags of torchrun that would change what a job does and that have
// no counterpart, with what to do instead.
var notHere = map[string]string{
	"log-dir":                  "this version writes no log files: redirect the output of cohort run, each line of which names its rank",
	"redirects":                "this version writes no log files: redirect the output of cohort run, each line of which names its rank",
	"tee":                      "this version writes no log files: pipe the output of cohort run, each line of which names its rank, through tee",
	"logs-specs":               "this version writes no log files",
	"log-line-prefix-template": "lines begin with \"[rank0] \"",
	"local-ranks-filter":       "the output of all ranks is shown; filter it by the \"[rank0] \" that its lines begin with",
	"duplicate-stdout-filters": "the output of all ranks is shown; filter it by the \"[rank0] \" that its lines begin with",
	"duplicate-stderr-filters": "the output of all ranks is shown; filter it by the \"[rank0] \" that its lines begin with",
	"event-log-handler":        "there are no events to handle: the report on standard error and the exit code say how the job ended",
	"local-addr":               "give --master-addr, or set COHORT_INTERFACE",
	"numa-binding":             "bind the whole job, as with numactl",
	"signals-to-handle":        "SIGINT, SIGTERM, SIGHUP and SIGQUIT go to the ranks",
	"run-path":                 "give the script as PROGRAM",
	"virtual-local-rank":       "ranks compute on the CPU and share it",
}

// shorthands are the letters that torchrun has for flags that are not here.
var shorthands = map[string]string{"redirects": "r", "tee": "t"}

func (f *torchrunFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.backend, "rdzv-backend", "static", "`way` in which nodes would meet: static or c10d, which are the same on one machine")
	flags.StringVar(&f.endpoint, "rdzv-endpoint", "", "`address` and port of this machine: static has rank 0 listen there, c10d needs nobody to")
	flags.StringVar(&f.role, "role", "default", "`name` of the workers' role, for them to see")
	flags.Float64Var(&f.shutdown, "shutdown-timeout", 30, "`seconds` that a rank has to end after a signal, before SIGKILL")
	flags.Float64Var(&f.interval, "monitor-interval", 0, "taken, but not needed: `seconds` between looks at the ranks, whose ends are seen at once")
	flags.StringVar(&f.conf, "rdzv-conf", "", "taken, but not needed: `settings` of how nodes meet")
	flags.StringVar(&f.startMethod, "start-method", "spawn", "taken, but not needed: `way` to start a rank, always a new process here")
	for _, name := range slices.Sorted(maps.Keys(notHere)) {
		flags.StringP(name, shorthands[name], "", notHere[name])
		flags.Lookup(name).Hidden = true
		flags.Lookup(name).NoOptDefVal = map[string]string{"run-path": "true", "virtual-local-rank": "true"}[name]
	}
}

// apply puts into a configuration what the flags say of it.
func (f *torchrunFlags) apply(set *pflag.FlagSet, cfg *launch.Config, standalone bool) error {
	for _, name := range slices.Sorted(maps.Keys(notHere)) {
		if set.Changed(name) {
			return fmt.Errorf("--%s is a flag of torchrun that cohort run does not have: %s", name, notHere[name])
		}
	}
	cfg.Role = f.role
	switch {
	case f.backend != "static" && f.backend != "c10d":
		return fmt.Errorf("--rdzv-backend %s: on one machine there are static and c10d; leave the flag out", f.backend)
	case !(f.shutdown > 0) || f.shutdown > math.MaxInt32:
		return fmt.Errorf("--shutdown-timeout %v: give a number of seconds above 0", f.shutdown)
	}
	cfg.Grace = time.Duration(f.shutdown * float64(time.Second))
	if f.endpoint == "" || standalone { // which has torchrun ignore it
		return nil
	}
	host, port, err := localEndpoint(f.endpoint)
	if err != nil {
		return fmt.Errorf("--rdzv-endpoint %s: %w", f.endpoint, err)
	}
	if f.backend == "c10d" {
		return nil
	}
	if set.Changed("master-addr") && host != cfg.MasterAddr || set.Changed("master-port") && port != 0 && port != cfg.MasterPort {
		return fmt.Errorf("--rdzv-endpoint %s is not what --master-addr and --master-port say: leave out either", f.endpoint)
	}
	cfg.MasterAddr = host
	if port != 0 {
		cfg.MasterPort = port
	}
	return nil
}

// localEndpoint reads host:port, or a host alone, which must be this machine.
func localEndpoint(text string) (host string, port int, err error) {
	host = text
	if h, p, err := net.SplitHostPort(text); err == nil {
		host = h
		n, err := strconv.ParseUint(p, 10, 16)
		if err != nil {
			return "", 0, fmt.Errorf("port %q: want 0 to 65535", p)
		}
		port = int(n)
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
	return "", 0, fmt.Errorf("%q is not this machine, the only one that this version runs on: give localhost, its name or one of its addresses", host)
}
