// SPDX-License-Identifier: Apache-2.0

package train

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/parallel"
	"github.com/cohort-ml/cohort/tensor"
)

const (
	// A comparison of the ranks' times has the hashes of numDigests pieces of pieceElems elements of the
	// replicated parameters. The pieces go round, so that each parameter has its turn.
	numDigests = 4
	pieceElems = 1 << 16
)

// digest is the hash of a piece of a parameter.
type digest struct{ key, hash uint64 }

// replicaWatch watches whether the parameters of replicas stay the same, bit for bit.
type replicaWatch struct {
	params []*nn.Parameter // of float32, on the host
	names  map[uint64]string
	param  int // of the next piece,
	at     int // which begins at this element
	told   map[string]bool
}

// watchReplicas watches the parameters of replicas of a whole model.
func watchReplicas(params []*nn.Parameter) *replicaWatch {
	w := &replicaWatch{names: map[uint64]string{}, told: map[string]bool{}}
	for _, p := range params {
		if d := p.Data(); d.DType() == tensor.Float32 && d.Device() == tensor.CPU() && d.NumElems() > 0 && !p.Sparse {
			w.params = append(w.params, p)
			w.names[hashText(p.Name())] = p.Name()
		}
	}
	return w
}

// next returns the digests of the next pieces.
func (w *replicaWatch) next() (out []digest) {
	if w == nil || len(w.params) == 0 {
		return nil
	}
	first, from := w.param, w.at
	for len(out) < numDigests {
		p := w.params[w.param]
		n := p.Data().NumElems()
		end := min(n, w.at+pieceElems)
		flat := p.Data().Detach().Reshape(n).Narrow(0, w.at, end-w.at)
		out = append(out, digest{hashText(p.Name()) ^ uint64(w.at)<<1, hashFloats(flat.Float32s())})
		if w.at = end; end == n {
			w.param, w.at = (w.param+1)%len(w.params), 0
		}
		if w.param == first && w.at == from {
			break // all of them
		}
	}
	return out
}

// hashText is FNV-1a, with room for a place in the lowest bits of a key.
func hashText(text string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(text) {
		h = (h ^ uint64(text[i])) * 1099511628211
	}
	return h &^ (1<<40 - 1)
}

// hashFloats tells values apart that differ in any bit.
func hashFloats(v []float32) uint64 {
	const prime = 0x9e3779b97f4a7c15
	h := [4]uint64{uint64(len(v)), 1, 2, 3} // multiplications that do not wait for each other
	mix := func(i int, a, b float32) {
		x := uint64(math.Float32bits(a))<<32 | uint64(math.Float32bits(b))
		h[i] = (h[i] ^ x ^ h[i]>>29) * prime
	}
	for ; len(v) >= 8; v = v[8:] {
		mix(0, v[0], v[1])
		mix(1, v[2], v[3])
		mix(2, v[4], v[5])
		mix(3, v[6], v[7])
	}
	for i, x := range v {
		mix(i%4, x, 0)
	}
	return (((h[0]*prime^h[1])*prime^h[2])*prime ^ h[3]) * prime
}

// differing returns a sentence about each tensor that is not the same on all ranks and was not told of.
func (w *replicaWatch) differing(step int, ranks [][]digest, members []dist.Member) (news []string) {
	if w == nil {
		return nil
	}
	pieces := map[uint64]map[uint64][]int{} // by key, the ranks by hash
	for rank, of := range ranks {
		for _, d := range of {
			if pieces[d.key] == nil {
				pieces[d.key] = map[uint64][]int{}
			}
			pieces[d.key][d.hash] = append(pieces[d.key][d.hash], rank)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(pieces)) {
		sides := slices.SortedFunc(maps.Values(pieces[key]), func(a, b []int) int {
			return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a[0], b[0]))
		})
		name := w.names[key&^(1<<40-1)]
		if len(sides) < 2 || w.told[name] {
			continue
		}
		w.told[name] = true
		var who []string
		odd := sides[1:]
		if len(sides[0]) == len(sides[1]) { // nobody knows who is right
			odd = sides
		}
		for _, side := range odd {
			for _, rank := range side {
				who = append(who, members[rank].String())
			}
		}
		news = append(news, fmt.Sprintf("the replicas differ after step %d: parameter %s of %s is not what other ranks have, bit for bit; stop the run and go on from a checkpoint before that, and test the memory of that machine", step, name, strings.Join(who[:min(len(who), 8)], ", ")))
	}
	return news
}

// sameReplicas watches the parameters that replicas of the whole model have, nil for other strategies.
func (r *trainer[B]) sameReplicas() *replicaWatch {
	if _, ok := r.model.(*parallel.DDP); !ok {
		return nil
	}
	return watchReplicas(r.params)
}
