// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"fmt"
	"syscall"
)

// Attempt is one start of the workers: where this host stands among the others
// and where rank 0 will listen. The next attempt is another value, with another
// port: nobody in it can meet what an earlier one has left on a wire.
type Attempt struct {
	// Number is how often the workers have been restarted after failures, from 0.
	// An attempt made because hosts have come or gone keeps the number.
	Number int
	// NodeRank is this host's place among NumNodes; 0 nodes means one.
	NodeRank, NumNodes int
	// FirstRank is the rank of this host's first worker; worker i has rank
	// FirstRank+i of WorldSize. 0 means Config.NumRanks.
	FirstRank, WorldSize int
	// FirstRoleRank and RoleWorldSize count the workers of Config.Role alone; a
	// RoleWorldSize of 0 means that all have the same role.
	FirstRoleRank, RoleWorldSize int
	// MasterAddr and MasterPort are where rank 0 listens.
	MasterAddr string
	MasterPort int
	// NodeAddrs are where the ranks of all nodes are reached, if there are several: names or
	// IP addresses, in the order of the nodes and separated by commas, of hosts whose agents have shown that they belong
	// to the job. Ranks of PyTorch, which cannot show that, are let in from there.
	NodeAddrs string
	// AgentStore says that the agent of node 0 serves PyTorch's store to all ranks, at
	// MasterAddr and MasterPort: what [Host.ServesStore] says there.
	AgentStore bool
	// OnFailure is called for each worker that ends badly, as soon as it has, by
	// the goroutine of [Host.Run]: it must not wait. May be nil.
	OnFailure func(Failure)
	// OnSignal is called when this process gets a signal that it passes on, in
	// the same way. May be nil.
	OnSignal func(syscall.Signal)
	// Kill, when it is closed, has the workers killed at once. May be nil.
	Kill <-chan struct{}
}

func (a Attempt) withDefaults(cfg *Config) (Attempt, error) {
	if a.NumNodes == 0 {
		a.NumNodes = 1
	}
	if a.WorldSize == 0 {
		a.WorldSize = cfg.NumRanks
	}
	if a.RoleWorldSize == 0 {
		a.FirstRoleRank, a.RoleWorldSize = a.FirstRank, a.WorldSize
	}
	if a.MasterAddr == "" {
		a.MasterAddr = cfg.MasterAddr
	}
	switch {
	case a.Number < 0 || a.NodeRank < 0 || a.NodeRank >= a.NumNodes:
		return a, fmt.Errorf("attempt %d of node %d of %d", a.Number, a.NodeRank, a.NumNodes)
	case a.FirstRank < 0 || a.FirstRank+cfg.NumRanks > a.WorldSize:
		return a, fmt.Errorf("attempt with ranks %d to %d of a world of %d", a.FirstRank, a.FirstRank+cfg.NumRanks-1, a.WorldSize)
	case a.FirstRoleRank < 0 || a.FirstRoleRank+cfg.NumRanks > a.RoleWorldSize:
		return a, fmt.Errorf("attempt with role ranks %d to %d of %d", a.FirstRoleRank, a.FirstRoleRank+cfg.NumRanks-1, a.RoleWorldSize)
	case a.MasterPort < 1 || a.MasterPort > 65535:
		return a, fmt.Errorf("attempt with master port %d", a.MasterPort)
	}
	return a, nil
}
