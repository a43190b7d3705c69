// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// outerParam is what a rank of an island keeps of a parameter, or of its shard, for the outer
// optimizer.
type outerParam struct {
	param    *nn.Parameter
	outer    *tensor.Tensor // the value after the last exchange, the same on all islands
	momentum *tensor.Tensor // of the outer optimizer, the same on all islands
	residual *tensor.Tensor // what int8 has left out of the last outer gradient of this island
}

func newOuterParam(p *nn.Parameter) *outerParam {
	zeros := func() *tensor.Tensor { return tensor.Zeros(p.Data().Shape()...) }
	return &outerParam{param: p, outer: zeros(), momentum: zeros(), residual: zeros()}
}

// fragment is the parameters that are exchanged together.
type fragment []*outerParam

// divideFragments makes n fragments of about the same number of elements, in the order of the model.
// Each has a parameter at least.
func divideFragments(params []*outerParam, n int) []fragment {
	total := 0
	for _, p := range params {
		total += elemsOf(p.param)
	}
	fragments, done := make([]fragment, 0, n), 0
	for i, p := range params {
		first := len(fragments) == 0
		// The next one begins where its share does, or where as many parameters are left as it takes.
		if first || len(fragments) < n && (done >= len(fragments)*total/n || len(params)-i <= n-len(fragments)) {
			fragments = append(fragments, nil)
		}
		last := len(fragments) - 1
		fragments[last] = append(fragments[last], p)
		done += elemsOf(p.param)
	}
	return fragments
}

// elemsOf returns the number of elements of a whole parameter.
func elemsOf(p *nn.Parameter) int {
	if whole := p.Whole(); whole != nil {
		n := 1
		for _, d := range whole {
			n *= d
		}
		return n
	}
	return p.Data().NumElems()
}

// numElems returns the number of elements that this rank has.
func (f fragment) numElems() (n int) {
	for _, p := range f {
		n += p.outer.NumElems()
	}
	return n
}

// begin takes the values of the parameters as the outer ones.
func (f fragment) begin() {
	for _, p := range f {
		p.outer.CopyFrom(p.param.Data())
		p.momentum.Fill(0)
		p.residual.Fill(0)
	}
}

// reset gives the parameters the outer values.
func (f fragment) reset() {
	for _, p := range f {
		p.param.Data().CopyFrom(p.outer)
		p.residual.Fill(0)
	}
}

// digest is of the outer values.
func (f fragment) digest() uint32 {
	sum := uint32(0)
	var b []byte
	for _, p := range f {
		b = appendFloats(b[:0], p.outer)
		sum = crc32.Update(sum, crc32.IEEETable, b)
	}
	return sum
}

// encode returns the outer gradient of this island: the outer values without the present ones, and
// what the last gradient has left out.
func (f fragment) encode(code outerCode) ([]byte, error) {
	payload := make([]byte, 0, code.size(f.numElems())+4*len(f))
	for _, p := range f {
		now := p.param.Data().Float32s()
		var err error
		p.outer.WithFloat32s(func(outer []float32) {
			p.residual.WithFloat32s(func(g []float32) {
				for i := range g {
					g[i] += outer[i] - now[i]
				}
				payload, err = code.encode(payload, g)
			})
		})
		if err != nil {
			return nil, fmt.Errorf("the outer gradient of %s is not finite: %w; the run diverges: lower the learning rate of the inner or of the outer optimizer", p.param.Name(), err)
		}
	}
	return payload, nil
}

// outerStep is how an island takes an exchange.
type outerStep struct {
	lr, momentum float32 // Nesterov's
	mix          float32 // the share of the island's own values in those with which it goes on
}

// take does a step of the outer optimizer by the mean of the payloads. present says whether one of
// them is that of this island.
func (f fragment) take(payloads [][]byte, code outerCode, o outerStep, present bool) error {
	share := 1 / float32(len(payloads))
	payloads = append([][]byte(nil), payloads...)
	for _, p := range f {
		g := make([]float32, p.outer.NumElems())
		for i := range payloads {
			rest, err := code.add(g, payloads[i])
			if err != nil {
				return fmt.Errorf("the outer gradient of %s from member %d of the exchange: %w", p.param.Name(), i, err)
			}
			payloads[i] = rest
		}
		old := p.outer.Float32s()
		p.outer.WithFloat32s(func(outer []float32) {
			p.momentum.WithFloat32s(func(m []float32) {
				for i, v := range g {
					v *= share
					m[i] = float32(o.momentum*m[i]) + v
					outer[i] -= float32(o.lr * (v + float32(o.momentum*m[i])))
				}
				p.move(old, outer, o.mix, present)
			})
		})
	}
	for i, rest := range payloads {
		if len(rest) > 0 {
			return fmt.Errorf("member %d of the exchange has posted %d bytes too many", i, len(rest))
		}
	}
	return nil
}

// move brings the parameter towards the new outer values. An island that took part goes on from a
// mean of them and its own values. One that did not has sent nothing of what it has learned since the
// old outer values, and keeps all of it.
func (p *outerParam) move(old, outer []float32, mix float32, present bool) {
	if !present {
		p.residual.Fill(0)
	}
	p.param.Data().WithFloat32s(func(now []float32) {
		for i, v := range now {
			if present {
				now[i] = outer[i] + float32(mix*(v-outer[i]))
			} else {
				now[i] = outer[i] + (v - old[i])
			}
		}
	})
}

// appendState appends what all islands have alike.
func (f fragment) appendState(b []byte) []byte {
	for _, p := range f {
		b = appendFloats(appendFloats(b, p.outer), p.momentum)
	}
	return b
}

// takeState reads what appendState has written, and returns what follows it.
func (f fragment) takeState(b []byte) ([]byte, error) {
	for _, p := range f {
		for _, t := range []*tensor.Tensor{p.outer, p.momentum} {
			if len(b) < 4*t.NumElems() {
				return nil, fmt.Errorf("the state of another island ends within %s: do all islands have the same model?", p.param.Name())
			}
			t.WithFloat32s(func(v []float32) {
				for i := range v {
					v[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
				}
			})
			b = b[4*t.NumElems():]
		}
	}
	return b, nil
}

func appendFloats(b []byte, t *tensor.Tensor) []byte {
	t.WithFloat32s(func(v []float32) {
		for _, x := range v {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
		}
	})
	return b
}
