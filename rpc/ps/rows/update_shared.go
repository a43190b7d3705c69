// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"runtime"
	"slices"
	"sync/atomic"
)

// sharedRows is the number of keys of an update that the writer shares with a helper under one
// lock. Most of the time of an update goes by waiting for the memory of its rows, which two
// cores do side by side.
const sharedRows = 2 * lockRows

// hasCores reports whether a helper may have a core of its own.
func hasCores() bool { return runtime.GOMAXPROCS(0) > 1 }

// Where the helper of an update is.
const (
	helperComes = iota // nobody waits for it
	helperWorks
	helperLate // there is nothing left for it
)

// updateShared changes the rows of sharedRows keys. The writer and a helper take tiles of them
// in turns; if no core is free for the helper, the writer takes all. Keys without a row are left
// to the writer at the end, for rows begin one by one. It reports whether most keys had a row.
func (t *Table) updateShared(at Mark, keys []int64, grad []float32, c *Changes) (most bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.helper == nil {
		t.helper = &updateScratch{}
		t.helper.init(t)
	}
	var next, helper atomic.Int32
	done := make(chan struct{})
	go func() {
		if helper.CompareAndSwap(helperComes, helperWorks) {
			defer close(done)
			t.changeTiles(t.helper, at, keys, grad, &next)
		}
	}()
	t.changeTiles(&t.update, at, keys, grad, &next)
	if !helper.CompareAndSwap(helperComes, helperLate) {
		<-done
	}
	without := slices.Concat(t.update.without, t.helper.without)
	slices.Sort(without)
	for _, u := range []*updateScratch{&t.update, t.helper} {
		c.Changed += int(u.stats.pushes)
		c.Older += u.older
		t.stats.add(&u.stats)
		u.older, u.without = 0, u.without[:0]
	}
	return 2*len(without) < len(keys), t.updateAt(at, keys, grad, without, c)
}

// changeTiles changes the rows of the tiles that nobody has taken.
func (t *Table) changeTiles(u *updateScratch, at Mark, keys []int64, grad []float32, next *atomic.Int32) {
	width := t.schema.Width
	for {
		lo := tileRows * (int(next.Add(1)) - 1)
		if lo >= len(keys) {
			return
		}
		hi := min(lo+tileRows, len(keys))
		n := 0
		t.eachWave(u.read, keys[lo:hi], func(l *lookup, first, num int) {
			for i, plus := range l.slot[:num] {
				if plus == 0 {
					u.without = append(u.without, lo+first+i)
					continue
				}
				h := (*header)(l.header[i])
				if h.lsn >= at.LSN {
					u.older++
					continue
				}
				count(&u.stats, h, at)
				u.record[n], u.from[n] = l.record[i], first+i
				n++
			}
		})
		t.applySome(u, at, n, grad[lo*width:hi*width])
	}
}

// updateAt updates the keys at some positions, as updateLocked does.
func (t *Table) updateAt(at Mark, keys []int64, grad []float32, where []int, c *Changes) error {
	width := t.schema.Width
	var some [tileRows]int64
	values := make([]float32, min(tileRows, len(where))*width)
	for len(where) > 0 {
		n := min(tileRows, len(where))
		for i, from := range where[:n] {
			some[i] = keys[from]
			copy(values[i*width:(i+1)*width], grad[from*width:])
		}
		if err := t.updateTile(at, some[:n], values[:n*width], c); err != nil {
			return err
		}
		where = where[n:]
	}
	return nil
}

// applySome applies the gradients of a tile to the n records that the scratch has, which may be
// fewer.
func (t *Table) applySome(u *updateScratch, at Mark, n int, grad []float32) {
	width := t.schema.Width
	if n*width == len(grad) {
		t.applyTile(u, at, u.record[:n], grad)
		return
	}
	for i, from := range u.from[:n] {
		copy(u.grads[i*width:(i+1)*width], grad[from*width:])
	}
	t.applyTile(u, at, u.record[:n], u.grads[:n*width])
}
