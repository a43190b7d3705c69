// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"fmt"
	"testing"

	"github.com/cohort-ml/cohort/internal/device"
)

// dense returns an array of zeros on c.
func dense(c *CPU, dtype device.DType, shape ...int) device.Array {
	a := device.Array{DType: dtype, Shape: shape, Strides: make([]int, len(shape))}
	step := 1
	for i := len(shape) - 1; i >= 0; i-- {
		a.Strides[i] = step
		step *= shape[i]
	}
	a.Ptr = c.Alloc(step*dtype.Size(), false).Ptr
	c.Fill(a, 0)
	return a
}

func reordered(a device.Array, order ...int) device.Array {
	p := a
	p.Shape, p.Strides = make([]int, len(order)), make([]int, len(order))
	for i, d := range order {
		p.Shape[i], p.Strides[i] = a.Shape[d], a.Strides[d]
	}
	return p
}

// BenchmarkStrided measures copies of permuted tensors and operations on
// broadcast ones, in bytes that a dense copy would move (read and written),
// beside that copy in the same run:
//
//	go test -run '^$' -bench Strided -count 5 ./internal/device/cpu
func BenchmarkStrided(b *testing.B) {
	for _, threads := range []int{1, 2} {
		c := New(threads)
		for _, shape := range [][]int{{64, 128, 32}, {64, 512, 128}} {
			src := dense(c, device.Float32, shape...)
			n := src.NumElems()
			run := func(name string, streams int, fn func()) {
				b.Run(fmt.Sprintf("%v/threads=%d/%s", shape, threads, name), func(b *testing.B) {
					b.SetBytes(int64(4 * n * streams))
					for b.Loop() {
						fn()
					}
				})
			}
			same := dense(c, device.Float32, shape...)
			run("dense copy", 2, func() { c.Copy(same, src) })
			for _, order := range [][]int{{1, 0, 2}, {0, 2, 1}, {2, 1, 0}, {2, 0, 1}, {1, 2, 0}} {
				p := reordered(src, order...)
				dst := dense(c, device.Float32, p.Shape...)
				run(fmt.Sprintf("permute%v", order), 2, func() { c.Copy(dst, p) })
			}
			run("dense add", 3, func() { c.Binary(device.Add, same, src, src) })
			column := dense(c, device.Float32, shape[0], shape[1], 1)
			column.Shape, column.Strides = shape, []int{shape[1], 1, 0}
			run("add column", 2, func() { c.Binary(device.Add, same, src, column) })
			run("sub column", 2, func() { c.Binary(device.Sub, same, src, column) })
			channel := dense(c, device.Float32, shape[1], 1)
			channel.Shape, channel.Strides = shape, []int{0, 1, 0}
			run("mul channel", 2, func() { c.Binary(device.Mul, same, src, channel) })
			halves, halvesOut := dense(c, device.BFloat16, shape...), dense(c, device.BFloat16, shape...)
			run("add float32+bfloat16", 3, func() { c.Binary(device.Add, same, src, halves) })
			run("add bfloat16", 3, func() { c.Binary(device.Add, halvesOut, halves, halves) })
			run("silu bfloat16", 2, func() { c.Unary(device.SiLU, halvesOut, halves) })
			run("silu float32", 2, func() { c.Unary(device.SiLU, same, src) })
		}
	}
}
