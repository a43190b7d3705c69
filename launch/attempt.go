// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"fmt"
	"syscall"
)

// Attempt is one start of the workers. It says which ranks this host has, and where
// rank 0 listens. The next attempt is another value with another port, so that its ranks
// meet nothing that an earlier attempt has left on a wire.
type Attempt struct {
	// Number counts the restarts after failures, from 0. An attempt that is made because
	// hosts have come or gone keeps the number.
	Number int
	// NodeRank is this host's rank among NumNodes hosts. NumNodes 0 means 1.
	NodeRank, NumNodes int
	// FirstRank is the rank of this host's first worker; worker i has rank FirstRank+i of
	// WorldSize. WorldSize 0 means Config.NumRanks.
	FirstRank, WorldSize int
	// FirstRoleRank and RoleWorldSize count only the workers of Config.Role. RoleWorldSize
	// 0 means that all workers have the same role.
	FirstRoleRank, RoleWorldSize int
	// MasterAddr and MasterPort are where rank 0 listens.
	MasterAddr string
	MasterPort int
	// NodeAddrs are the addresses of all nodes, if there are several: names or IP addresses
	// in the order of the nodes, separated by commas. The agents of these hosts have proved
	// that they belong to the job. Ranks of PyTorch cannot prove that; they are admitted
	// from these addresses.
	NodeAddrs string
	// AgentStore says that the agent of node 0 serves PyTorch's store to all ranks, at
	// MasterAddr and MasterPort. It is the answer of [Host.ServesStore] on that node.
	AgentStore bool
	// OnFailure is called for each worker that fails, as soon as it has ended. The goroutine
	// of [Host.Run] calls it: it must not wait. May be nil.
	OnFailure func(Failure)
	// OnSignal is called, in the same way, when this process gets a signal that it passes
	// on. May be nil.
	OnSignal func(syscall.Signal)
	// Kill is closed to have the workers killed at once. May be nil.
	Kill <-chan struct{}
}

// Watcher is told what happens to the workers of a host. Several goroutines call its methods, which
// must not wait.
type Watcher interface {
	// Begin says that an attempt begins: restarts after failures before it, and the ranks of the job.
	Begin(attempt, world int)
	// Started says that a worker was started.
	Started(rank, local, pid int, host string)
	// Line has a line, or a piece of a long one, that a worker has written, with its end and without the
	// job's token. It is valid during the call. The output of a rank that Config.PassRank0 lets through is not seen.
	Line(rank int, isErr bool, line []byte)
	// Ended says that a worker has ended: whether it failed, whether the launcher had asked it to end,
	// and how, as in "exited with code 1".
	Ended(rank int, failed, asked bool, how string)
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
