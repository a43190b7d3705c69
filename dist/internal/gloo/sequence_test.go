// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/dist/operation"
)

var (
	sequenceSeed = flag.Uint64("sequence.seed", 1, "the seed of the first random sequence")
	numSequences = flag.Int("sequences", 4, "how many random sequences to play")
)

// TestSequences plays 200 collectives from a seed, one right after the other, on Go
// ranks alone: small ones, which their callers write, among such as the writers do. More
// of them, best on a machine that is busy with other things:
//
//	go test ./dist/internal/gloo -run TestSequences -sequences 500
func TestSequences(t *testing.T) {
	ops := []operation.Op{operation.Barrier, operation.AllReduce, operation.Reduce, operation.Broadcast,
		operation.AllGather, operation.Gather, operation.Scatter, operation.AllToAll, operation.ReduceScatter}
	sizes := []int{1, 3, 70, 1 << 10, 1<<14 + 1, 1 << 15, 1 << 17}
	steps := 200
	if testing.Short() {
		steps = 50
	}
	for i := range *numSequences {
		seed := *sequenceSeed + uint64(i)
		size := 2 + int(seed%4)
		t.Run(fmt.Sprintf("seed%d/%d", seed, size), func(t *testing.T) {
			g := []Generation{PerPair, PerDevice}[seed/4%2]
			change := func(cfg *Config) {
				for range 1 + seed/2%2 { // calls take turns at the connections of these
					cfg.Addrs = append(cfg.Addrs, netip.AddrFrom4([4]byte{127, 0, 0, 1}))
				}
			}
			together(t, g, size, change, func(b *Communicator) error {
				rng := rand.New(rand.NewPCG(seed, 0)) // the same on all ranks
				me := b.cfg.Rank
				for n := range steps {
					op, elems, root := ops[rng.IntN(len(ops))], sizes[rng.IntN(len(sizes))], rng.IntN(size)
					value := func(rank, to, i int) float32 { return float32(rank*7 + to*3 + (i+n)%1000) }
					own := func(to int) []byte { return floats(elems, func(i int) float32 { return value(me, to, i) }) }
					sum := func(to int) func(i int) float32 {
						return func(i int) float32 {
							var s float32
							for r := range size {
								s += value(r, to, i)
							}
							return s
						}
					}
					// of returns what all ranks have for one, or one has for all.
					of := func(f func(r, i int) float32) func(i int) float32 {
						return func(i int) float32 { return f(i/elems, i%elems) }
					}
					var in, out []byte
					want := sum(0)
					switch op {
					case operation.Barrier:
						elems = 0
					case operation.AllReduce:
						in = own(0)
						out = in
					case operation.Broadcast:
						in = own(0)
						out, want = in, func(i int) float32 { return value(root, 0, i) }
					case operation.Reduce:
						if in = own(0); me == root {
							out = in
						}
					case operation.AllGather, operation.Gather:
						if in = own(0); op == operation.AllGather || me == root {
							out = make([]byte, 4*elems*size)
						}
						want = of(func(r, i int) float32 { return value(r, 0, i) })
					case operation.Scatter:
						if me == root {
							in = floats(elems*size, of(func(r, i int) float32 { return value(me, r, i) }))
						}
						out, want = make([]byte, 4*elems), func(i int) float32 { return value(root, me, i) }
					case operation.AllToAll:
						in, out = floats(elems*size, of(func(r, i int) float32 { return value(me, r, i) })), make([]byte, 4*elems*size)
						want = of(func(r, i int) float32 { return value(r, me, i) })
					case operation.ReduceScatter:
						in, out = floats(elems*size, of(func(r, i int) float32 { return value(me, r, i) })), make([]byte, 4*elems)
						want = sum(me)
					}
					c := operation.Call{Op: op, Root: root, Count: elems, DType: operation.Float32, Seq: uint64(n)}
					var src, dst collective.Data
					if in != nil {
						src = dataOf(in, operation.Float32)
					}
					if out != nil {
						dst = dataOf(out, operation.Float32)
					}
					if err := b.Collective(t.Context(), c, src, dst); err != nil {
						return fmt.Errorf("step %d, %v: %w", n, c, err)
					}
					if err := checkFloats(fmt.Sprintf("step %d, %v", n, c), out, want); err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
}
