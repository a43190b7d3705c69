// SPDX-License-Identifier: Apache-2.0

package meeting

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/internal/transport"
)

// openStore serves the store on rank 0 and connects to it elsewhere, unless
// one is given.
func (m *meeting) openStore(ctx context.Context) error {
	if m.settings.Store != nil {
		m.store = inAttempt(m.settings.Store)
		return nil
	}
	if m.agentServes() {
		return m.joinAgentStore(ctx)
	}
	if m.rank != 0 {
		var err error
		if m.client, err = store.Connect(ctx, m.master, m.token, m.encrypt, transport.WithFailures(func(err error) { m.failed.Store(&err) })); err != nil {
			// A newer server of PyTorch's is silent to who is not its client, an older one hangs up.
			if errors.Is(err, transport.ErrRejected) || errors.Is(err, transport.ErrNoRoom) || errors.Is(err, os.ErrDeadlineExceeded) {
				err = fmt.Errorf("%w; where PyTorch's rank 0 listens there, give dist.WithBackend(%q)", err, "gloo")
			}
			return fmt.Errorf("connect to rank 0, which listens at %s: %w", m.master, err)
		}
		m.failed.Store(nil)
		m.store = m.client
		return nil
	}
	addr := m.master
	if host, port, err := net.SplitHostPort(addr); err == nil && host != "localhost" {
		// The address by which others know this host may not be one that it
		// has itself, so all are listened on, unless the job is local.
		if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
			addr = net.JoinHostPort("", port)
		}
	}
	var err error
	if m.port, err = transport.Listen(addr, m.token); err != nil {
		return err
	}
	m.guard(m.port)
	mem := store.NewMemory()
	m.server, m.store = store.Serve(m.port, mem), mem
	return nil
}

// StorePatience is how long rank 0, when it leaves, serves the store for those
// who have not yet.
const StorePatience = 500 * time.Millisecond

// agentServes reports whether the launcher serves a store at MASTER_ADDR:MASTER_PORT, so
// that rank 0 cannot: torchrun says so, where it does.
func (m *meeting) agentServes() bool {
	return m.host == nil && m.settings.Store == nil && (m.settings.URL == "" || m.settings.URL == "env://") &&
		envvar.UseAgentStore.Text() == "True"
}

// joinAgentStore has the ranks meet in the launcher's store, which speaks PyTorch's
// protocol and asks for no token. What the ranks then say to each other does: addresses
// are all that a stranger finds there.
func (m *meeting) joinAgentStore(ctx context.Context) error {
	if envvar.AgentFD.IsSet() { // cohort run, which serves one for PyTorch's ranks only
		return fmt.Errorf("the launcher serves PyTorch's store at %s, for a job with PyTorch ranks: join it with dist.WithBackend(%q); where all ranks are Go programs, say cohort run --store rank0", m.master, "gloo")
	}
	var err error
	if m.lent, err = store.DialPyTorch(ctx, m.master); err != nil {
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

// Peek returns a key's value as it is now, nil if it has none: stores wait in Get.
func Peek(ctx context.Context, s store.Store, key string) ([]byte, error) {
	// What has this value gets it again, and what has none gets none; PyTorch's stores
	// would take an empty one for none.
	same := []byte{0}
	value, _, err := s.CompareAndSet(ctx, key, same, same)
	return value, err
}

// IsSet reports whether a key has a value.
func IsSet(ctx context.Context, s store.Store, key string) (bool, error) {
	value, err := Peek(ctx, s, key)
	return value != nil, err
}
