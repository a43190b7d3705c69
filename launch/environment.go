// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"slices"
	"strconv"
	"strings"

	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/internal/transport"
)

// environ makes the environment of every worker: what is inherited, then
// torchrun's variables, then Cohort's own.
func environ(cfg *Config, j job, a Attempt, recorderDir string) [][]string {
	hosts := "False" // rank 0 has the store
	if a.AgentStore {
		hosts = "True"
	}
	common := []string{
		envvar.LocalWorldSize.Assign(strconv.Itoa(cfg.NumRanks)),
		envvar.WorldSize.Assign(strconv.Itoa(a.WorldSize)),
		envvar.RoleWorldSize.Assign(strconv.Itoa(a.RoleWorldSize)),
		envvar.GroupWorldSize.Assign(strconv.Itoa(a.NumNodes)),
		envvar.GroupRank.Assign(strconv.Itoa(a.NodeRank)),
		envvar.RoleName.Assign(cfg.Role),
		envvar.MasterAddr.Assign(a.MasterAddr),
		envvar.MasterPort.Assign(strconv.Itoa(a.MasterPort)),
		envvar.RestartCount.Assign(strconv.Itoa(a.Number)),
		envvar.MaxRestarts.Assign(strconv.Itoa(cfg.MaxRestarts)),
		envvar.SignalsToHandle.Assign(signalNames(cfg.Signals)),
		envvar.RunID.Assign(cfg.RunID),
		envvar.UseAgentStore.Assign(hosts),
		envvar.Job.Assign(j.id),
		envvar.Token.Assign(j.token),
		envvar.NodeID.Assign(j.nodeID),
		envvar.AgentFD.Assign(strconv.Itoa(agentFD)),
		envvar.RecorderDir.Assign(recorderDir),
	}
	if a.NodeAddrs != "" {
		common = append(common, envvar.NodeAddrs.Assign(a.NodeAddrs))
	}
	// PyTorch's ranks listen where this host's name leads, which may be loopback.
	if addrs := strings.Split(a.NodeAddrs, ","); len(addrs) == a.NumNodes && valueOf(cfg.Env, envvar.GlooInterface) == "" {
		if name := transport.InterfaceOf(addrs[a.NodeRank]); name != "" {
			common = append(common, envvar.GlooInterface.Assign(name))
		}
	}
	common = append(common, cfg.extra...)
	// Bound ranks have as many as processors: see startAll.
	threads := valueOf(cfg.Env, envvar.NumThreads)
	if threads == "" && cfg.Binding == BindNone {
		common = append(common, envvar.NumThreads.Assign(strconv.Itoa(max(1, numCores()/cfg.NumRanks))))
	}
	if valueOf(cfg.Env, envvar.OMPNumThreads) == "" && cfg.NumRanks > 1 {
		common = append(common, envvar.OMPNumThreads.Assign("1"))
	}
	if valueOf(cfg.Env, envvar.NCCLErrors) == "" {
		common = append(common, envvar.NCCLErrors.Assign("1"))
	}

	ours := map[string]bool{string(envvar.Rank): true, string(envvar.LocalRank): true, string(envvar.RoleRank): true, string(envvar.ErrorFile): true, string(envvar.Spawn): true, string(envvar.NodeAddrs): true}
	ours[string(envvar.NumThreads)] = ours[string(envvar.NumThreads)] || threads == ""
	if cfg.VirtualLocalRank {
		ours[string(envvar.VisibleGPUs)] = true
	}
	for _, kv := range common {
		k, _, _ := strings.Cut(kv, "=")
		ours[k] = true
	}
	// One entry a name, the last one given: with two, programs disagree on which
	// counts.
	var base []string
	seen := map[string]bool{}
	for _, kv := range slices.Backward(cfg.Env) {
		if k, _, _ := strings.Cut(kv, "="); !ours[k] && !seen[k] {
			seen[k] = true
			base = append(base, kv)
		}
	}
	slices.Reverse(base)
	base = append(base, common...)

	gpus := strings.Split(valueOf(cfg.Env, envvar.VisibleGPUs), ",")
	envs := make([][]string, cfg.NumRanks)
	for i := range envs {
		local := i
		envs[i] = base[:len(base):len(base)]
		if cfg.VirtualLocalRank {
			local = 0
			gpu := strconv.Itoa(i)
			if i < len(gpus) && gpus[0] != "" {
				gpu = strings.TrimSpace(gpus[i])
			}
			envs[i] = append(envs[i], envvar.VisibleGPUs.Assign(gpu))
		}
		envs[i] = append(envs[i],
			envvar.Rank.Assign(strconv.Itoa(a.FirstRank+i)),
			envvar.LocalRank.Assign(strconv.Itoa(local)),
			envvar.RoleRank.Assign(strconv.Itoa(a.FirstRoleRank+i)))
	}
	return envs
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
