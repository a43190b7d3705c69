// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"context"
	"encoding/binary"
	"time"

	"github.com/cohort-ml/cohort/dist/operation"
)

// MonitoredBarrier is PyTorch's: rank 0 waits for a word from each of the others, in
// their order, and then answers all. Its error at rank 0 names the ranks that have
// not come: the first of them, or all if waitAll is set. It uses two tags.
func (b *Communicator) MonitoredBarrier(ctx context.Context, c operation.Call, waitAll bool) error {
	if err := b.usable(&c); err != nil {
		return err
	}
	there, err := b.take(ofMessage)
	if err != nil {
		return b.fail(b.blameFor(&c, err))
	}
	back, err := b.take(ofMessage)
	if err != nil {
		return b.fail(b.blameFor(&c, err))
	}
	ctx, cancel := context.WithTimeout(ctx, b.cfg.Timeout)
	defer cancel()
	word := binary.LittleEndian.AppendUint32(nil, uint32(b.cfg.Rank))
	if b.cfg.Rank != 0 {
		if err := b.message(ctx, &c, 0, there, word, true); err != nil {
			return err
		}
		return b.message(ctx, &c, 0, back, word, false)
	}
	n := len(b.cfg.Members)
	begun := time.Now()
	words := make([]*message, n)
	for r := 1; r < n; r++ {
		words[r] = b.newMessage(make([]byte, len(word)))
		p := b.pairFor(r, there)
		p.postRecv(slot(there), &words[r].op)
		p.flush()
	}
	for r := 1; r < n; r++ {
		for !words[r].done.Load() {
			select {
			case <-words[r].wake:
			case <-b.failed:
				return b.broken(&c, 0, begun, nil)
			case <-ctx.Done():
				var missing []int
				for late := r; late < n; late++ {
					if !words[late].done.Load() || words[late].err != nil {
						missing = append(missing, late)
						if !waitAll {
							break
						}
					}
				}
				return b.fail(b.late(ctx, &c, missing))
			}
		}
		if err := words[r].err; err != nil {
			return b.broken(&c, r, begun, err)
		}
	}
	for r := 1; r < n; r++ {
		if err := b.message(ctx, &c, r, back, word, true); err != nil {
			return err
		}
	}
	return nil
}
