// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"slices"
	"strconv"
	"strings"

	"github.com/cohort-ml/cohort/internal/agentpipe"
)

const (
	envJob        = "COHORT_JOB"
	envToken      = "COHORT_TOKEN"
	envNodeID     = "COHORT_NODE_ID"
	envNumThreads = "COHORT_NUM_THREADS"
)

// agentFD is the number under which a worker finds its pipe from the agent:
// the first after standard input, output and error.
const agentFD = 3

// job is what all ranks of one launch have in common.
type job struct {
	id     string // marks the processes of this job; not secret
	token  string
	nodeID string
}

// environ makes the environment of every worker: what is inherited, then
// torchrun's variables for one node and no restarts, then Cohort's own.
func environ(cfg *Config, j job) [][]string {
	size := strconv.Itoa(cfg.NumRanks)
	common := []string{
		"LOCAL_WORLD_SIZE=" + size,
		"WORLD_SIZE=" + size,
		"ROLE_WORLD_SIZE=" + size,
		"GROUP_WORLD_SIZE=1", // nodes
		"GROUP_RANK=0",       // of this node
		"ROLE_NAME=default",
		"MASTER_ADDR=" + cfg.MasterAddr,
		"MASTER_PORT=" + strconv.Itoa(cfg.MasterPort),
		"TORCHELASTIC_RESTART_COUNT=0",
		"TORCHELASTIC_MAX_RESTARTS=0",
		"TORCHELASTIC_RUN_ID=" + cfg.RunID,
		"TORCHELASTIC_USE_AGENT_STORE=False", // rank 0 hosts the store
		"TORCHELASTIC_ERROR_FILE=",           // not one inherited from an outer launcher
		envJob + "=" + j.id,
		envToken + "=" + j.token,
		envNodeID + "=" + j.nodeID,
		agentpipe.Env + "=" + strconv.Itoa(agentFD),
	}
	common = append(common, cfg.extra...)
	has := func(key string) bool {
		return slices.ContainsFunc(cfg.Env, func(kv string) bool { return strings.HasPrefix(kv, key+"=") && len(kv) > len(key)+1 })
	}
	if !has(envNumThreads) {
		common = append(common, envNumThreads+"="+strconv.Itoa(max(1, numCores()/cfg.NumRanks)))
	}
	if !has("OMP_NUM_THREADS") && cfg.NumRanks > 1 {
		common = append(common, "OMP_NUM_THREADS=1")
	}
	if !has("TORCH_NCCL_ASYNC_ERROR_HANDLING") {
		common = append(common, "TORCH_NCCL_ASYNC_ERROR_HANDLING=1")
	}

	ours := map[string]bool{"RANK": true, "LOCAL_RANK": true, "ROLE_RANK": true}
	for _, kv := range common {
		k, _, _ := strings.Cut(kv, "=")
		ours[k] = true
	}
	var base []string
	for _, kv := range cfg.Env {
		if k, _, _ := strings.Cut(kv, "="); !ours[k] {
			base = append(base, kv)
		}
	}
	base = append(base, common...)

	envs := make([][]string, cfg.NumRanks)
	for i := range envs {
		rank := strconv.Itoa(i)
		envs[i] = append(base[:len(base):len(base)], "RANK="+rank, "LOCAL_RANK="+rank, "ROLE_RANK="+rank)
	}
	return envs
}

// valueOf returns the value of key in KEY=VALUE entries; the last one counts.
func valueOf(env []string, key string) string {
	for _, kv := range slices.Backward(env) {
		if k, v, ok := strings.Cut(kv, "="); ok && k == key {
			return v
		}
	}
	return ""
}
