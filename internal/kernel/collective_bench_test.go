// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"fmt"
	"testing"
)

// BenchmarkMerge counts the bytes that are read and written, beside memmove's:
//
//	go test -run '^$' -bench Merge -count 5 -cpu 1 ./internal/kernel
func BenchmarkMerge(b *testing.B) {
	for _, size := range []int{64 << 10, 64 << 20} {
		bufs := make([][]byte, 9)
		for i := range bufs {
			// The starts differ within a page, as those of tensors do.
			bufs[i] = make([]byte, size+4096)[256*i:][:size]
			for j := range bufs[i] {
				bufs[i][j] = byte(j % 64)
			}
		}
		run := func(name string, numBytes int, f func()) {
			b.Run(fmt.Sprintf("%d/%s", size, name), func(b *testing.B) {
				b.SetBytes(int64(numBytes))
				for b.Loop() {
					f()
				}
			})
		}
		run("memmove", 2*size, func() { copy(bufs[0], bufs[1]) })
		for _, c := range []struct {
			e  Elem
			ms []Merging
		}{
			{ElemFloat32, []Merging{MergeSum, MergeMax}}, {ElemBFloat16, []Merging{MergeSum}}, {ElemFloat16, []Merging{MergeSum}},
			{ElemInt64, []Merging{MergeSum}}, {ElemInt32, []Merging{MergeSum}}, {ElemInt64, []Merging{MergeMin, MergeProduct}},
			{ElemInt32, []Merging{MergeProduct}}, {ElemFloat64, []Merging{MergeSum, MergeMax, MergeProduct}},
			{ElemInt8, []Merging{MergeSum, MergeMax, MergeProduct}}, {ElemUint8, []Merging{MergeXor}},
		} {
			for _, m := range c.ms {
				for _, n := range []int{2, 4, 8} {
					if n > 2 && m != MergeSum {
						continue
					}
					what := fmt.Sprintf("%d/%s", c.e, mergingNames[m])
					run(fmt.Sprintf("%s/%d", what, n), (n+1)*size, func() { Merge(c.e, m, bufs[8:], bufs[:n], 1, size > 1<<20) })
					if m == MergeSum && c.e <= ElemFloat16 {
						run(fmt.Sprintf("%s/%dto%d", what, n, n), 2*n*size, func() { Merge(c.e, m, bufs[:n], bufs[:n], 1, size > 1<<20) })
					}
				}
			}
		}
		run("mean", 3*size, func() { Merge(ElemFloat32, MergeSum, bufs[8:], bufs[:2], 2, size > 1<<20) })
		run("mean int32", 3*size, func() { Merge(ElemInt32, MergeSum, bufs[8:], bufs[:2], 3, size > 1<<20) })
		run("mean int8", 3*size, func() { Merge(ElemInt8, MergeSum, bufs[8:], bufs[:2], 3, size > 1<<20) })
		run("premultiply bfloat16", 2*size, func() { Premultiply(ElemBFloat16, bufs[8], bufs[0], 0.5) })
	}
}
