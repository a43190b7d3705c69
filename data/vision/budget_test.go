// SPDX-License-Identifier: Apache-2.0

package vision

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"image"
	"image/color"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/cohort-ml/cohort/data"
)

// TestBudget: who comes first is served first, one who gives up makes room, and
// nothing is lost.
func TestBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := budget{size: 10, free: 10}
		if err := b.take(t.Context(), 7); err != nil || b.tryTake(4) || !b.tryTake(3) {
			t.Fatal(err, b.free)
		}
		b.give(3)
		var order []int64
		var mu sync.Mutex
		ctx, cancel := context.WithCancelCause(t.Context())
		var wait sync.WaitGroup
		take := func(ctx context.Context, n int64) {
			wait.Go(func() {
				err := b.take(ctx, n)
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					order = append(order, n)
				} else if !strings.Contains(err.Error(), "waiting for other images") || !errors.Is(err, errStopped) {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		take(ctx, 9)
		take(t.Context(), 8)
		take(t.Context(), 2) // is free, but others came first
		cancel(errStopped)
		synctest.Wait()
		if len(order) != 0 {
			t.Fatal(order)
		}
		b.give(7)
		wait.Wait()
		slices.Sort(order) // both are granted at once
		if d := diff([]int64{2, 8}, order); d != "" || b.free != 0 {
			t.Error(d, b.free)
		}
	})
}

var errStopped = errors.New("stopped")

// TestDecodingTakesTurns: images that do not fit beside each other are decoded
// one after the other, and one that never fits is refused before anything is
// taken.
func TestDecodingTakesTurns(t *testing.T) {
	size := decoding.size
	defer func() { decoding.size, decoding.free = size, size }()
	m := image.NewNRGBA64(image.Rect(0, 0, 400, 300))
	m.SetNRGBA64(3, 4, color.NRGBA64{0xffff, 0, 0, 0xffff})
	jpg := encoded(t, m, false)
	set, err := OpenFolder(write(t, map[string][]byte{"a/1.png": encoded(t, m, true), "a/2.jpg": jpg}))
	if err != nil {
		t.Fatal(err)
	}
	decoding.size, decoding.free = 700_000, 700_000 // 360,000 are the pixels of one
	var wait sync.WaitGroup
	for range 8 {
		wait.Go(func() {
			for i := range set.Len() {
				if s, err := set.Get(t.Context(), data.Key{Index: i}); err != nil || s.Image.Width != 400 {
					t.Error(err)
				}
			}
			if _, err := Decode(jpg); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	if decoding.free != decoding.size {
		t.Errorf("%d of %d bytes are left", decoding.free, decoding.size)
	}
	decoding.size, decoding.free = 300_000, 300_000
	for i := range set.Len() {
		if _, err := set.Get(t.Context(), data.Key{Index: i}); err == nil || !strings.Contains(err.Error(), "an image of 400·300 pixels takes") {
			t.Error(err)
		}
	}
	if _, err := Decode(jpg); err == nil || !strings.Contains(err.Error(), "scale it down") {
		t.Error(err)
	}
	if decoding.free != decoding.size {
		t.Errorf("%d of %d bytes are left", decoding.free, decoding.size)
	}
}

// TestClaims: a header that claims what its bytes cannot hold takes no memory.
func TestClaims(t *testing.T) {
	file := encoded(t, image.NewGray(image.Rect(0, 0, 4, 4)), true)
	for _, side := range []uint32{12_000, 1 << 20, 1<<31 - 1} {
		b := bytes.Clone(file) // IHDR is the first chunk
		binary.BigEndian.PutUint32(b[16:], side)
		binary.BigEndian.PutUint32(b[20:], side)
		binary.BigEndian.PutUint32(b[29:], crc32.ChecksumIEEE(b[12:29]))
		if _, err := Decode(b); err == nil || !strings.Contains(err.Error(), "hold no image") {
			t.Errorf("%d: %v", side, err)
		}
	}
}
