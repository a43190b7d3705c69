// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/cohort-ml/cohort/dist/store"
)

// keyCannot is the key at which a node that cannot join says why.
const keyCannot = "cannot"

// cannotPatience is how long such a node tries to reach the store.
const cannotPatience = time.Second

// Cannot tells the other nodes why this one does not come. err is the error of a
// launch.Run that has ended before it called [Nodes.Run]. A node that would serve the store
// itself has nobody to tell. If the other nodes are not there, or cannot be reached, they
// hear nothing.
func (n *Nodes) Cannot(ctx context.Context, token string, err error) {
	mt := &n.Meeting
	if n.ran || err == nil || mt.Hosts != nil && *mt.Hosts {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, cannotPatience)
	defer cancel()
	open := mt.Open
	switch {
	case mt.Addr != "":
		open = dialStore(mt.Addr, token)
	case mt.File != "":
		open = openFile(mt.File)
	}
	l := newStoreClient(open, n.Settings.Job, cannotPatience)
	defer l.close()
	host, _ := os.Hostname()
	text := clip(fmt.Sprintf("%s (pid %d) at %s: %v", host, os.Getpid(), time.Now().Format(time.TimeOnly), err))
	_ = l.call(ctx, cannotPatience, func(ctx context.Context, s store.Store) error {
		return s.Set(ctx, keyCannot, []byte(text))
	})
}

// askWhoCannot prints, once each, why a node does not come for which this one waits. When
// the job runs, all these nodes have come. What one of them has said before is then deleted,
// because it would be wrong when the job waits for other nodes.
func (p *participant) askWhoCannot() {
	s := p.m.State()
	if s == nil {
		return
	}
	if s.Phase != Gathering {
		if s.Phase == Running && !p.forgot {
			p.forgot = true
			p.running.Go(func() {
				_ = p.store.call(p.ctx, p.store.timeout, func(ctx context.Context, s store.Store) error {
					_, err := s.Delete(ctx, keyCannot)
					return err
				})
			})
		}
		return
	}
	if p.forgot = false; len(s.Members) >= s.Min {
		return
	}
	p.running.Go(func() {
		var text string
		_ = p.store.call(p.ctx, p.store.timeout, func(ctx context.Context, s store.Store) error {
			b, _, err := s.CompareAndSet(ctx, keyCannot, absent, absent)
			text = clip(string(b))
			return err
		})
		if text == "" {
			return
		}
		p.happened(onLoop{func() {
			if text != p.cannot {
				p.cannot = text
				fmt.Fprintf(p.out, "cohort: a node cannot join: %s\n", plain(text))
			}
		}})
	})
}
