// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"slices"
	"strconv"
	"strings"

	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/internal/transport"
)

// environments makes the environment of each worker. All variables that a worker gets
// are in this file, in four groups: what the worker inherits (Config.Env), what all
// workers of the attempt share (sharedVars, defaultVars), and its own (rankVars).
//
// The way of a flag to a variable: cohort run fills in a [Config] (cmd/cohort), [Open]
// completes it, an [Attempt] says where this host stands in the job, and sharedVars and
// rankVars write the values of both.
func (a *agent) environments() [][]string {
	shared := slices.Concat(a.sharedVars(), a.defaultVars())
	own := make([][]string, a.cfg.NumRanks)
	for i := range own {
		own[i] = a.rankVars(i)
	}
	// Variables that an outer launcher has given this process are not the workers', and neither
	// is what launchers alone prove to their store.
	given := map[string]bool{string(envvar.Spawn): true, string(envvar.NodeAddrs): true, string(envvar.EtcdPassword): true}
	for _, kv := range slices.Concat(shared, own[0]) {
		name, _, _ := strings.Cut(kv, "=")
		given[name] = true
	}
	base := append(inherited(a.cfg.Env, given), shared...)
	envs := make([][]string, len(own))
	for i := range envs {
		envs[i] = slices.Concat(base, own[i])
	}
	return envs
}

// inherited returns the entries of env whose names are not given anew. Each name has
// one entry, the last: programs disagree on which of two counts.
func inherited(env []string, given map[string]bool) (out []string) {
	seen := map[string]bool{}
	for _, kv := range slices.Backward(env) {
		if name, _, _ := strings.Cut(kv, "="); !given[name] && !seen[name] {
			seen[name] = true
			out = append(out, kv)
		}
	}
	slices.Reverse(out)
	return out
}

// sharedVars are the variables that have one value for all workers of the attempt.
func (a *agent) sharedVars() []string {
	cfg, at := &a.cfg, &a.attempt
	agentStore := "False" // rank 0 serves the store
	if at.AgentStore {
		agentStore = "True"
	}
	vars := []string{
		// torchrun's
		envvar.LocalWorldSize.Assign(strconv.Itoa(cfg.NumRanks)),
		envvar.WorldSize.Assign(strconv.Itoa(at.WorldSize)),
		envvar.RoleWorldSize.Assign(strconv.Itoa(at.RoleWorldSize)),
		envvar.GroupWorldSize.Assign(strconv.Itoa(at.NumNodes)),
		envvar.GroupRank.Assign(strconv.Itoa(at.NodeRank)),
		envvar.RoleName.Assign(cfg.Role),
		envvar.MasterAddr.Assign(at.MasterAddr),
		envvar.MasterPort.Assign(strconv.Itoa(at.MasterPort)),
		envvar.RestartCount.Assign(strconv.Itoa(at.Number)),
		envvar.MaxRestarts.Assign(strconv.Itoa(cfg.MaxRestarts)),
		envvar.SignalsToHandle.Assign(signalNames(cfg.Signals)),
		envvar.RunID.Assign(cfg.RunID),
		envvar.UseAgentStore.Assign(agentStore),
		// Cohort's
		envvar.Job.Assign(a.job.id),
		envvar.Token.Assign(a.job.token),
		envvar.NodeID.Assign(a.job.nodeID),
		envvar.AgentFD.Assign(strconv.Itoa(agentFD)),
		envvar.RecorderDir.Assign(a.recorders.dir),
	}
	if at.NodeAddrs != "" {
		vars = append(vars, envvar.NodeAddrs.Assign(at.NodeAddrs))
	}
	if cfg.spawnCall > 0 {
		vars = append(vars, envvar.Spawn.Assign(strconv.FormatInt(cfg.spawnCall, 10)))
	}
	if a.notice != nil && a.notice.path != "" {
		vars = append(vars, envvar.Notice.Assign(a.notice.path))
	}
	return vars
}

// defaultVars are variables that all workers share and that a value in Config.Env
// replaces.
func (a *agent) defaultVars() (vars []string) {
	add := func(v envvar.Var, value string) {
		if valueOf(a.cfg.Env, v) == "" {
			vars = append(vars, v.Assign(value))
		}
	}
	if a.bound == nil { // else see rankVars
		add(envvar.NumThreads, strconv.Itoa(max(1, numCores()/a.cfg.NumRanks)))
	}
	if a.cfg.NumRanks > 1 {
		add(envvar.OMPNumThreads, "1")
	}
	add(envvar.NCCLErrors, "1")
	// The name of this host may lead to a loopback address, at which PyTorch's ranks
	// would listen.
	if addrs := strings.Split(a.attempt.NodeAddrs, ","); len(addrs) == a.attempt.NumNodes {
		if name := transport.InterfaceOf(addrs[a.attempt.NodeRank]); name != "" {
			add(envvar.GlooInterface, name)
		}
	}
	return vars
}

// rankVars are the variables of one worker. Their names are the same for all workers.
func (a *agent) rankVars(i int) []string {
	localRank := i
	if a.cfg.VirtualLocalRank {
		localRank = 0
	}
	vars := []string{
		envvar.Rank.Assign(strconv.Itoa(a.rank(i))),
		envvar.LocalRank.Assign(strconv.Itoa(localRank)),
		envvar.RoleRank.Assign(strconv.Itoa(a.attempt.FirstRoleRank + i)),
		envvar.ErrorFile.Assign(a.logs.errorFile(i)),
	}
	if a.cfg.VirtualLocalRank {
		gpu := strconv.Itoa(i)
		if gpus := strings.Split(valueOf(a.cfg.Env, envvar.VisibleGPUs), ","); i < len(gpus) && gpus[0] != "" {
			gpu = strings.TrimSpace(gpus[i])
		}
		vars = append(vars, envvar.VisibleGPUs.Assign(gpu))
	}
	// A bound rank has as many threads as processors.
	if a.bound != nil && valueOf(a.cfg.Env, envvar.NumThreads) == "" {
		vars = append(vars, envvar.NumThreads.Assign(strconv.Itoa(threadsOf(a.bound, i))))
	}
	return vars
}

// valueOf returns the value of key in KEY=VALUE entries; the last one counts.
func valueOf(env []string, key envvar.Var) string {
	for _, kv := range slices.Backward(env) {
		if k, v, ok := strings.Cut(kv, "="); ok && k == string(key) {
			return v
		}
	}
	return ""
}
