// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"hash/crc32"
	"math/rand/v2"
	"testing"

	"github.com/cohort-ml/cohort/internal/seeded"
)

func TestJoinSums(t *testing.T) {
	r := rand.New(rand.NewPCG(seeded.Of(t), 1))
	data := make([]byte, chunkBytes+5000)
	for i := range data {
		data[i] = byte(r.Uint32())
	}
	for _, cut := range []int{0, 1, 7, 8, 4096, 5000, 5001, len(data) - 1, len(data), r.IntN(len(data)), r.IntN(len(data))} {
		sum := func(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }
		if got, want := joinSums(sum(data[:cut]), sum(data[cut:]), int64(len(data)-cut)), sum(data); got != want {
			t.Errorf("cut at %d: %08x, want %08x", cut, got, want)
		}
	}
}
