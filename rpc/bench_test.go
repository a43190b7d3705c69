// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"fmt"
	"testing"

	"github.com/cohort-ml/cohort/rpc/internal/agenttest"
	"github.com/cohort-ml/cohort/tensor"
)

// Both agents are in one process here; `cohort bench rpc` measures between two.

func BenchmarkNoop(b *testing.B) {
	for _, kind := range agenttest.Transports {
		b.Run(kind, func(b *testing.B) {
			a := agents(b, kind, 2, serveBasics())
			p := a[0].Peer("w1")
			b.ReportAllocs()
			for b.Loop() {
				if _, err := noop.Call(b.Context(), p, struct{}{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkAsync(b *testing.B) {
	for _, kind := range agenttest.Transports {
		b.Run(kind, func(b *testing.B) {
			a := agents(b, kind, 2, serveBasics())
			p := a[0].Peer("w1")
			x := tensor.Full(1, 2)
			b.ReportAllocs()
			const window = 1000
			var fs []*Future[*tensor.Tensor]
			for b.Loop() {
				fs = append(fs, add.Async(b.Context(), p, addArgs{x, x}))
				if len(fs) == window {
					if _, err := WaitAll(b.Context(), fs...); err != nil {
						b.Fatal(err)
					}
					fs = fs[:0]
				}
			}
			if _, err := WaitAll(b.Context(), fs...); err != nil {
				b.Fatal(err)
			}
		})
	}
}

func BenchmarkEcho(b *testing.B) {
	for _, kind := range agenttest.Transports {
		for _, size := range []int{1 << 20, 16 << 20} {
			b.Run(fmt.Sprintf("%s/%d", kind, size), func(b *testing.B) {
				a := agents(b, kind, 2, serveBasics())
				p := a[0].Peer("w1")
				x := tensor.Full(1, size/4)
				b.SetBytes(int64(2 * size))
				for b.Loop() {
					if _, err := echo.Call(b.Context(), p, x); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
