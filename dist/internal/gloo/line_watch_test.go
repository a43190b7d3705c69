// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/dist/operation"
)

// unanswering is a connection to a host that stops answering at a time.
type unanswering struct {
	net.Conn
	since time.Time
}

func (c *unanswering) Unanswered() time.Duration { return max(0, time.Since(c.since)) }

// failing is a connection that the system gives up.
type failing struct {
	net.Conn
	err  error
	wait chan struct{}
	once sync.Once
}

func (c *failing) Read([]byte) (int, error) { <-c.wait; return 0, c.err }

func (c *failing) Close() error {
	c.once.Do(func() { close(c.wait) })
	return c.Conn.Close()
}

// TestHostGone: a host that answers nothing of what is sent to it is given up after half a
// minute, though the system goes on trying and the group's limit is far; so is one that the
// system gives up. Neither is taken for a rank that has left.
func TestHostGone(t *testing.T) {
	for name, test := range map[string]struct {
		cut  func(net.Conn) net.Conn
		says string
		at   time.Duration
	}{
		"data on their way": {func(c net.Conn) net.Conn { return &unanswering{c, time.Now().Add(time.Minute)} }, "for 30s: its host does not answer", 90 * time.Second},
		"at rest": {func(c net.Conn) net.Conn {
			f := &failing{Conn: c, err: &net.OpError{Op: "read", Net: "tcp", Err: syscall.ETIMEDOUT}, wait: make(chan struct{})}
			time.AfterFunc(40*time.Second, func() { f.once.Do(func() { close(f.wait) }) })
			return f
		}, "connection timed out", 40 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newCommunicator(func() Config {
					cfg := config(nil, PerDevice, 0, 2)
					cfg.Addrs, cfg.Timeout = make([]netip.Addr, 1), time.Hour
					return cfg
				}())
				defer b.Close()
				here, there := net.Pipe()
				drain(there)
				b.contexts[0].pairs[1].attach(test.cut(here))
				b.running.Add(1)
				go b.watchLines()
				begun := time.Now()
				err := b.Collective(context.Background(), operation.Call{Op: operation.Barrier, Seq: 1}, collective.Data{}, collective.Data{})
				var rank *fault.RankError
				if took := time.Since(begun); !errors.As(err, &rank) || rank.Rank != 1 || !errors.Is(err, fault.ErrSilent) || errors.Is(err, fault.ErrGone) ||
					!strings.Contains(err.Error(), test.says) || took < test.at || took > test.at+lookPeriod {
					t.Errorf("after %v: %v", took, err)
				}
			})
		})
	}
}
