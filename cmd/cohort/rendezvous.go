// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/launch"
	"github.com/cohort-ml/cohort/launch/rendezvous"
)

// several reports whether the job needs machines other than this one.
func (f *torchrunFlags) several() bool {
	return !f.standalone && (f.maxNodes > 1 || f.backend != "static" && f.backend != "c10d")
}

// localReadTimeout is how long the store may be out of reach if one of the nodes
// serves it. When that node has died, the store does not come back.
const localReadTimeout = 20 * time.Second

// nodes makes the part of the launcher that joins this machine with the others.
func (f *runFlags) nodes(cfg *launch.Config) (launch.Nodes, error) {
	why := "nnodes" // what makes it a job of several machines
	if f.maxNodes == 1 {
		why = "rdzv-backend"
	}
	if f.tokenFile == "" && !envvar.Token.IsSet() && !envvar.TokenFile.IsSet() {
		return nil, fmt.Errorf("%s: the machines of a job prove to each other that they belong together by a token, and this one has none: run `cohort token --file token.txt` on one of them, copy the file to the others, and give all of them --token-file token.txt (or export COHORT_TOKEN=$(cohort token) and set the same everywhere)", f.given(why))
	}
	if f.survivors {
		return nil, fmt.Errorf("--survivors and %s contradict each other: on several machines the launcher makes a new round of those that are left; leave one out", f.given(why))
	}
	n := &rendezvous.Nodes{
		Settings: rendezvous.Settings{Job: f.runID, Min: f.minNodes, Max: f.maxNodes, MaxRestarts: cfg.MaxRestarts, Timing: rendezvous.DefaultTiming()},
		Rank:     -1, Addr: f.localAddr,
	}
	if !isName(f.runID) || strings.Contains(f.runID, "/") {
		return nil, fmt.Errorf("--rdzv-id %q: give a name of 1 to 255 bytes, in UTF-8, without slashes and control characters", f.runID)
	}
	if f.role != "" && !isName(f.role) { // the others read it
		return nil, fmt.Errorf("--role %q: give a name of 1 to 255 bytes, in UTF-8, without control characters", f.role)
	}
	if f.localAddr != "" && net.ParseIP(f.localAddr) == nil {
		return nil, fmt.Errorf("%s: give the IP address under which the others reach this machine", f.given("local-addr"))
	}
	conf := maps.Clone(f.rdzvConf)
	if f.backend != "etcd" && f.backend != "etcd-v2" && f.backend != "file" {
		n.Settings.Timing.Read = localReadTimeout
	}
	if f.minNodes == f.maxNodes {
		n.Settings.Timing.Misses = rendezvous.FixedMisses
	}
	_, given := conf["read_timeout"]
	if err := n.Settings.Timing.Configure(conf); err != nil {
		return nil, fmt.Errorf("--rdzv-conf %w", err)
	}
	switch { // launchers are started in any order
	case given:
	case f.backend == "static":
		n.Meeting.Patience = n.Settings.Timing.Join
	case f.backend == "c10d":
		n.Meeting.Patience = time.Minute
	}
	if err := f.joins(n, cfg, conf); err != nil {
		return nil, err
	}
	if len(conf) > 0 {
		key := slices.Sorted(maps.Keys(conf))[0]
		return nil, fmt.Errorf("--rdzv-conf %s=%s: there are join_timeout, last_call_timeout, close_timeout, keep_alive_interval, keep_alive_max_attempt, heartbeat_timeout, read_timeout, timeout, for c10d is_host and store_type, and for etcd protocol, ca_cert, ssl_cert, ssl_cert_key, user and password_file", key, conf[key])
	}
	return n, nil
}

// isName reports whether a text is valid as a name that machines exchange.
func isName(text string) bool {
	return text != "" && len(text) <= 255 && utf8.ValidString(text) && !strings.ContainsFunc(text, unicode.IsControl)
}

// joins sets where the machines meet. Each --rdzv-backend has a function of its own.
func (f *runFlags) joins(n *rendezvous.Nodes, cfg *launch.Config, conf map[string]string) error {
	kind := conf["store_type"]
	if f.backend == "c10d" {
		delete(conf, "store_type")
		if kind != "" && kind != "tcp" && kind != "file" {
			return fmt.Errorf("--rdzv-conf store_type=%s: there are tcp and file", kind)
		}
	}
	switch {
	case f.backend == "file", f.backend == "c10d" && kind == "file":
		return f.joinsFile(&n.Meeting)
	case f.backend == "etcd", f.backend == "etcd-v2":
		return f.joinsEtcd(&n.Meeting, conf)
	case f.backend == "c10d":
		return f.joinsC10d(&n.Meeting, conf)
	default:
		return f.joinsStatic(n, cfg)
	}
}

// badEndpoint returns the error of an --rdzv-endpoint.
func (f *runFlags) badEndpoint(err error) error {
	return fmt.Errorf("%s: %w", f.given("rdzv-endpoint"), err)
}

// joinsFile makes the machines meet in a file that all of them can read.
func (f *runFlags) joinsFile(m *rendezvous.Meeting) (err error) {
	if f.endpoint == "" {
		return fmt.Errorf("%s: give --rdzv-endpoint PATH, of a file on a file system that all machines share", f.given("rdzv-backend"))
	}
	m.File, err = filepath.Abs(f.endpoint)
	return err
}

// joinsC10d makes the machines meet in a store that the machine at the endpoint
// serves.
func (f *runFlags) joinsC10d(m *rendezvous.Meeting, conf map[string]string) (err error) {
	if f.endpoint == "" {
		return fmt.Errorf("%s: give --rdzv-endpoint HOST:PORT, of the machine that is to serve the store in which all meet", f.given("rdzv-backend"))
	}
	if text, ok := conf["is_host"]; ok {
		hosts := slices.Contains([]string{"1", "true", "t", "yes", "y"}, strings.ToLower(text))
		if !hosts && !slices.Contains([]string{"0", "false", "f", "no", "n"}, strings.ToLower(text)) {
			return fmt.Errorf("--rdzv-conf is_host=%s: give true or false", text)
		}
		m.Hosts = &hosts
		delete(conf, "is_host")
	}
	if m.Addr, err = rendezvous.Endpoint(f.endpoint, rendezvous.C10dPort); err != nil {
		return f.badEndpoint(err)
	}
	return nil
}

// joinsStatic makes the machines meet in a store that machine 0 serves.
func (f *runFlags) joinsStatic(n *rendezvous.Nodes, cfg *launch.Config) (err error) {
	hosts := f.nodeRank == 0
	n.Meeting.Hosts, n.Rank = &hosts, int(f.nodeRank)
	port := rendezvous.StaticPort
	if cfg.MasterPort != 0 {
		port = cfg.MasterPort
	}
	at := f.endpoint
	if at == "" {
		at = f.masterAddr
	} else if f.has("master-addr") || f.has("master-port") {
		return fmt.Errorf("%s and %s contradict each other: leave one out", f.given("rdzv-endpoint"), strings.Join(f.anyOf("master-addr", "master-port"), " and "))
	}
	if n.Meeting.Addr, err = rendezvous.Endpoint(at, port); err != nil {
		return f.badEndpoint(err)
	}
	return nil
}
