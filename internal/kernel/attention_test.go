// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/cohort-ml/cohort/internal/random"
	"github.com/cohort-ml/cohort/internal/work"
)

// attentionOracle is the definition in float64: the output, the log-sum-exp and
// the gradients, densely stored by (batch, head, time, channel).
type attentionOracle struct{ out, lse, dq, dk, dv []float32 }

func (x *Heads) at(s *AttentionShape, b, h, t, d int) float64 {
	return float64(x.Data[x.base(b, h)+t*x.Time+d])
}

// attentionOracles are those of operands that were seen before: a test has the
// same ones for each instruction set, and the oracle takes most of its time.
var attentionOracles = map[string]attentionOracle{}

// attentionOracleOf returns newAttentionOracle of its arguments.
func attentionOracleOf(s *AttentionShape, q, k, v, dout *Heads) attentionOracle {
	shape := *s
	shape.Mask.Data = nil
	digest := uint64(14695981039346656037) // FNV-1a, by elements
	for _, data := range [][]float32{q.Data, k.Data, v.Data, dout.Data, s.Mask.Data} {
		for _, x := range data {
			digest = (digest ^ uint64(math.Float32bits(x))) * 1099511628211
		}
	}
	key := fmt.Sprintf("%#v %x", shape, digest)
	o, found := attentionOracles[key]
	if !found {
		o = newAttentionOracle(s, q, k, v, dout)
		attentionOracles[key] = o
	}
	return o
}

func newAttentionOracle(s *AttentionShape, q, k, v, dout *Heads) attentionOracle {
	n := s.Batch * s.Heads
	keys := n / s.group() * s.KeyTime * s.Dim
	o := attentionOracle{make([]float32, n*s.Time*s.Dim), make([]float32, n*s.Time),
		make([]float32, n*s.Time*s.Dim), make([]float32, keys), make([]float32, keys)}
	var dk, dv []float64
	for i := range n {
		b, h := i/s.Heads, i%s.Heads
		hk := h / s.group()
		if h%s.group() == 0 {
			dk, dv = make([]float64, s.KeyTime*s.Dim), make([]float64, s.KeyTime*s.Dim)
		}
		keep := make([]float32, s.Time*s.KeyTime)
		if s.Dropout == 0 {
			Fill(nil, keep, 1)
		} else {
			DropoutScales(keep, s.Random, s.Stream, uint64(i*len(keep)), s.Dropout)
		}
		for t := range s.Time {
			visible := s.visible(t)
			p, slope := make([]float64, visible), make([]float64, visible)
			for j := range slope {
				slope[j] = 1
			}
			var sum float64
			top := math.Inf(-1)
			for j := range p {
				for d := range s.Dim {
					p[j] += q.at(s, b, h, t, d) * k.at(s, b, hk, j, d)
				}
				p[j] *= float64(s.Scale)
				if c := float64(s.SoftCap); c != 0 {
					bent := math.Tanh(p[j] / c)
					p[j], slope[j] = c*bent, 1-bent*bent
				}
				if m := s.Mask; m.Data != nil {
					p[j] += float64(m.Data[b*m.Batch+h*m.Head+t*m.Time+j])
				}
				top = max(top, p[j])
			}
			for j := range p {
				p[j] = math.Exp(p[j] - top)
				sum += p[j]
			}
			o.lse[i*s.Time+t] = float32(top + math.Log(sum))
			if math.IsInf(top, -1) {
				o.lse[i*s.Time+t], sum = negInf, 1
				clear(p)
			}
			kept := func(j int) float64 { return float64(keep[t*s.KeyTime+j]) }
			dp := make([]float64, visible)
			var delta float64
			for j := range p {
				p[j] /= sum
				for d := range s.Dim {
					dp[j] += dout.at(s, b, h, t, d) * v.at(s, b, hk, j, d) * kept(j)
					dv[j*s.Dim+d] += p[j] * dout.at(s, b, h, t, d) * kept(j)
				}
				delta += p[j] * dp[j]
			}
			for d := range s.Dim {
				var y, dy float64
				for j := range p {
					y += p[j] * v.at(s, b, hk, j, d) * kept(j)
					ds := p[j] * (dp[j] - delta) * slope[j] * float64(s.Scale)
					dy += ds * k.at(s, b, hk, j, d)
					dk[j*s.Dim+d] += ds * q.at(s, b, h, t, d)
				}
				o.out[(i*s.Time+t)*s.Dim+d], o.dq[(i*s.Time+t)*s.Dim+d] = float32(y), float32(dy)
			}
		}
		for j := range dk {
			at := i / s.group() * len(dk)
			o.dk[at+j], o.dv[at+j] = float32(dk[j]), float32(dv[j])
		}
	}
	return o
}

// keysOnly is the shape whose heads are those of the keys.
func (s AttentionShape) keysOnly() *AttentionShape {
	s.Heads /= s.group()
	return &s
}

// dense returns x in the order of the oracle.
func (x *Heads) dense(s *AttentionShape, time int) []float32 {
	var y []float32
	for b := range s.Batch {
		for h := range s.Heads {
			for t := range time {
				at := x.base(b, h) + t*x.Time
				y = append(y, x.Data[at:at+s.Dim]...)
			}
		}
	}
	return y
}

// newHeads returns an operand whose heads lie side by side in each position,
// with gap unused elements, which are NaN, behind them.
func newHeads(r *rand.Rand, s *AttentionShape, time, gap int) Heads {
	row := s.Heads*s.Dim + gap
	x := Heads{make([]float32, s.Batch*time*row), time * row, row, s.Dim}
	for i := range x.Data {
		x.Data[i] = float32(math.NaN())
		if r != nil && i%row < s.Heads*s.Dim {
			x.Data[i] = float32(r.NormFloat64())
		}
	}
	return x
}

func TestAttention(t *testing.T) {
	p := work.New(3)
	defer p.Close()
	shapes := []AttentionShape{
		{Batch: 2, Heads: 3, Time: 40, KeyTime: 40, Dim: 32},
		{Batch: 1, Heads: 2, Time: 1, KeyTime: 1, Dim: 1},
		{Batch: 1, Heads: 1, Time: 1, KeyTime: 77, Dim: 64},
		{Batch: 2, Heads: 6, KeyHeads: 2, Time: 40, KeyTime: 44, Dim: 32},
		{Batch: 2, Heads: 4, KeyHeads: 1, Time: 2, KeyTime: 9, Dim: 48},
		{Batch: 2, Heads: 2, Time: 3, KeyTime: 0, Dim: 4},
		{Batch: 2, Heads: 2, Time: 0, KeyTime: 3, Dim: 4},
		{Batch: 2, Heads: 1, Time: 13, KeyTime: 50, Dim: 40},
		{Batch: 1, Heads: 2, Time: 50, KeyTime: 13, Dim: 20},
		{Batch: 1, Heads: 1, Time: 128, KeyTime: 128, Dim: 32},
		{Batch: 1, Heads: 1, Time: 200, KeyTime: 200, Dim: 80},
		{Batch: 1, Heads: 8, KeyHeads: 4, Time: 30, KeyTime: 30, Dim: 128},
		{Batch: 1, Heads: 1, Time: 70, KeyTime: 600, Dim: 24},
		{Batch: 1, Heads: 2, KeyHeads: 1, Time: 3, KeyTime: 2100, Dim: 20},
	}
	if testing.Short() {
		shapes = shapes[:9]
	}
	forEachISA(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(5, 6))
		for _, s := range shapes {
			s.Scale = float32(1 / math.Sqrt(float64(s.Dim)))
			for _, s.Causal = range []bool{false, true} {
				checkAttentionShape(t, r, p, s)
			}
			if s.Time*s.KeyTime > 1<<12 {
				continue
			}
			// A mask of each head, whose second query of the first head sees nothing,
			// and one for all, both with dropout and without.
			mask := make([]float32, s.Heads*s.Time*s.KeyTime)
			for i := range mask {
				mask[i] = float32(r.NormFloat64())
				if r.IntN(4) == 0 || s.Time > 1 && i/max(1, s.KeyTime) == 1 {
					mask[i] = negInf
				}
			}
			s.Random, s.Stream = random.Philox{Key: 7}, 3
			for _, s.Dropout = range []float32{0, 0.3} {
				for _, s.Causal = range []bool{false, true} {
					s.Mask = AttentionMask{}
					checkAttentionShape(t, r, p, s)
					s.Mask = AttentionMask{Data: mask, Head: s.Time * s.KeyTime, Time: s.KeyTime}
					checkAttentionShape(t, r, p, s)
					s.Mask = AttentionMask{Data: mask}
					checkAttentionShape(t, r, p, s)
					s.SoftCap = 1.5 // with a mask for all, and without one
					checkAttentionShape(t, r, p, s)
					s.Mask = AttentionMask{}
					checkAttentionShape(t, r, p, s)
					s.SoftCap = 0
				}
			}
		}
	})
}

// TestMaskedKeysLeaveNoTrace: what a mask forbids weighs 0, not next to nothing, so
// that values are not seen however large they are.
func TestMaskedKeysLeaveNoTrace(t *testing.T) {
	forEachISA(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(7, 8))
		for _, s := range []AttentionShape{
			{Batch: 1, Heads: 1, Time: 2, KeyTime: 2, Dim: 2},
			{Batch: 2, Heads: 4, KeyHeads: 2, Time: 40, KeyTime: 45, Dim: 32},
			{Batch: 1, Heads: 2, Time: 2, KeyTime: 70, Dim: 48}, // few queries
			{Batch: 1, Heads: 2, Time: 9, KeyTime: 33, Dim: 7},
		} {
			s.Scale = float32(1 / math.Sqrt(float64(s.Dim)))
			for _, forbidden := range []float32{negInf, -math.MaxFloat32, -1e9, -1e4} {
				mask := make([]float32, s.Time*s.KeyTime)
				for i := range mask {
					if i%s.KeyTime%3 == 1 {
						mask[i] = forbidden
					}
				}
				s.Mask = AttentionMask{Data: mask, Time: s.KeyTime}
				for _, s.Causal = range []bool{false, true} {
					checkAttentionShape(t, r, nil, s, func(j int, v float32) float32 {
						if j%3 == 1 {
							return 1e36 * v
						}
						return v
					})
				}
			}
		}
	})
}

func checkAttentionShape(t *testing.T, r *rand.Rand, p *work.Pool, s AttentionShape, values ...func(key int, v float32) float32) {
	t.Helper()
	keys := s.keysOnly()
	q, k, v := newHeads(r, &s, s.Time, 3), newHeads(r, keys, s.KeyTime, 0), newHeads(r, keys, s.KeyTime, 5)
	dout := newHeads(r, &s, s.Time, 1)
	for _, fn := range values {
		for i, x := range v.Data {
			v.Data[i] = fn(i%v.Batch/v.Time, x)
		}
	}
	want := attentionOracleOf(&s, &q, &k, &v, &dout)
	var first []float32
	for _, pool := range []*work.Pool{nil, p} {
		out, dq := newHeads(nil, &s, s.Time, 2), newHeads(nil, &s, s.Time, 0)
		dk, dv := newHeads(nil, keys, s.KeyTime, 0), newHeads(nil, keys, s.KeyTime, 7)
		lse := make([]float32, s.Batch*s.Heads*s.Time)
		Attention(pool, s, out, q, k, v, lse)
		AttentionBackward(pool, s, dq, dk, dv, dout, out, q, k, v, lse)
		name := func(what string) string {
			return fmt.Sprintf("%s, mask %t, dropout %g: %s", &s, s.Mask.Data != nil, s.Dropout, what)
		}
		compare(t, name("out"), out.dense(&s, s.Time), want.out, 1e-5)
		compare(t, name("lse"), lse, want.lse, 1e-5)
		compare(t, name("dq"), dq.dense(&s, s.Time), want.dq, 2e-5)
		compare(t, name("dk"), dk.dense(keys, s.KeyTime), want.dk, 3e-5)
		compare(t, name("dv"), dv.dense(keys, s.KeyTime), want.dv, 3e-5)
		all := append(append(append(out.dense(&s, s.Time), dq.dense(&s, s.Time)...), dk.dense(keys, s.KeyTime)...), dv.dense(keys, s.KeyTime)...)
		if first == nil {
			first = all
			continue
		}
		for i := range all {
			if math.Float32bits(all[i]) != math.Float32bits(first[i]) {
				t.Fatalf("%s: element %d is %g with one thread, %g with three", name("result"), i, first[i], all[i])
			}
		}
	}
}

// TestSoftmaxRows holds the exponential of each instruction set to 2e-7 of the
// truth over its whole range.
func TestSoftmaxRows(t *testing.T) {
	forEachISA(t, func(t *testing.T) {
		const n = 1 << 12
		x, want := make([]float32, n), make([]float64, n)
		for i := range x {
			x[i] = -float32(i) * 87.2 / n
			want[i] = math.Exp(float64(x[i]))
		}
		var top, sum float32
		softmaxRows(&x[0], n, 1, n, 0, n, &top, &sum)
		if top != 0 {
			t.Errorf("the maximum is %g, want 0", top)
		}
		for i, y := range x {
			if d := math.Abs(float64(y)-want[i]) / want[i]; !(d < 2e-7) {
				t.Fatalf("exp(%g) is %g, want %g: off by %g", -float32(i)*87.2/n, y, want[i], d)
			}
		}
		for i := range x {
			x[i] = []float32{0, -87.4, -88, -200, -1e9, -math.MaxFloat32, negInf}[i%7]
		}
		softmaxRows(&x[0], n, 1, n-3, 0, n, &top, &sum)
		for i, y := range x {
			if one := i%7 == 0 && i < n-3; y != 0 && !one || one && y != 1 {
				t.Fatalf("element %d of what is far below the maximum is %g", i, y)
			}
		}
		x[5] = float32(math.NaN())
		softmaxRows(&x[0], n, 1, n, 0, n, &top, &sum)
		if sum == sum {
			t.Errorf("a NaN is lost: the sum is %g", sum)
		}
	})
}

func TestAttentionChecksItsOperands(t *testing.T) {
	s := AttentionShape{Batch: 2, Heads: 2, Time: 3, KeyTime: 3, Dim: 4, Scale: 1}
	x := newHeads(nil, &s, 3, 0)
	short := x
	short.Data = x.Data[:len(x.Data)-1]
	for name, call := range map[string]func(){
		"short q": func() { Attention(nil, s, x, short, x, x, nil) },
		"short k": func() { Attention(nil, s, x, x, short, x, nil) },
		"short mask": func() {
			s := s
			s.Mask = AttentionMask{Data: make([]float32, 8), Time: 3}
			Attention(nil, s, x, x, x, x, nil)
		},
		"three heads of keys for two": func() {
			s := s
			s.KeyHeads = 3
			Attention(nil, s, x, x, x, x, nil)
		},
		"short lse": func() { Attention(nil, s, x, x, x, x, make([]float32, 11)) },
		"no lse":    func() { AttentionBackward(nil, s, x, x, x, x, x, x, x, x, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			call()
		})
	}
}
