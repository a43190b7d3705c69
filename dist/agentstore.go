// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"fmt"

	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/internal/envvar"
)

// agentServes reports whether the launcher serves a store at MASTER_ADDR:MASTER_PORT, so
// that rank 0 cannot: torchrun says so, where it does.
func (m *meeting) agentServes() bool {
	return m.host == nil && m.options.store == nil && (m.url == "" || m.url == "env://") &&
		envvar.UseAgentStore.Text() == "True"
}

// joinAgentStore has the ranks meet in the launcher's store, which speaks PyTorch's
// protocol and asks for no token. What the ranks then say to each other does: addresses
// are all that a stranger finds there.
func (m *meeting) joinAgentStore(ctx context.Context) error {
	if envvar.AgentFD.IsSet() { // cohort run, which serves one for PyTorch's ranks only
		return fmt.Errorf("the launcher serves PyTorch's store at %s, for a job with PyTorch ranks: join it with dist.WithBackend(%q); where all ranks are Go programs, say cohort run --store rank0", m.master, glooBackend)
	}
	var err error
	if m.lent, err = store.DialPyTorch(ctx, m.master, store.PyTorchClientConfig{}); err != nil {
		return fmt.Errorf("meet in the launcher's store at %s, which %s=True promises: %w", m.master, envvar.UseAgentStore, err)
	}
	m.store = inAttempt(m.lent)
	return nil
}

// inAttempt returns the part of a store that this start of the job's ranks has.
func inAttempt(s store.Store) store.Store {
	run, _ := envvar.RunID.Lookup()
	again, _ := envvar.RestartCount.Lookup()
	return store.Prefix(s, "cohort/"+run+"/"+again+"/")
}
