// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/internal/random"
	"github.com/cohort-ml/cohort/tensor"
)

// PowerSGD are the settings of [PowerSGDHook]. The zero value is PyTorch's defaults.
type PowerSGD struct {
	Rank           int     // of the matrices that stand for a gradient; 0 for 1
	StartStep      int     // the first step that compresses; 0 for 1000. Gradients of the steps before it are averaged whole
	MinCompression float64 // a gradient is compressed only to less than 1/MinCompression of its elements; 0 for 2
	Epsilon        float64 // added to the length by which columns are divided
	Seed           int64   // of the first matrices, the same on all ranks

	NoErrorFeedback bool // forget what a step did not send, instead of adding it to the next step
	ColdStart       bool // begin each step with random matrices, instead of those of the step before
}

// PowerSGDHook returns a hook that sends the product of two narrow matrices in place of each
// gradient (Vogels et al. 2019, "PowerSGD"): (rows + columns)·Rank elements instead of
// rows·columns. What that product lacks stays on the rank, and is added to its gradient of the next
// step. It is PyTorch's powerSGD_hook.
//
// A gradient is a matrix of its first dim and all others. Gradients that would not become
// small enough, such as those of biases, and gradients of other dtypes than float32, are averaged
// whole.
//
// What a step with gradients that are not finite would leave for the next ones is dropped: a loop
// that leaves such a step out goes on.
//
// A column of zeros is replaced by random numbers before it is used again. PyTorch's
// hook divides by its length, and gives NaN if Epsilon is 0.
func PowerSGDHook(o PowerSGD) Hook {
	o.Rank, o.StartStep, o.MinCompression = cmp.Or(o.Rank, 1), cmp.Or(o.StartStep, 1000), cmp.Or(o.MinCompression, 2)
	return &powerSGD{o: o, rng: random.NewMT(o.Seed), buckets: map[int]*powerBucket{}}
}

// powerSGD is the hook, and what it keeps between steps.
type powerSGD struct {
	hookOwner
	o       PowerSGD
	step    int
	rng     *random.MT
	drawn   int                  // words of rng that are used up
	buckets map[int]*powerBucket // by index, once they are compressed or saved
	numbers *tensor.Tensor       // of [DDP.HookState]: the step, drawn, and which buckets are warm
}

// powerBucket is what a bucket keeps.
type powerBucket struct {
	errors   *tensor.Tensor // [elements]: what has not been sent; nil without error feedback
	whole    *tensor.Tensor // the gradients that are not compressed, back to back; nil for none
	ps, qs   *tensor.Tensor // all left and right matrices, back to back; nil for none
	matrices []powerMatrix
	rest     []int // the gradients in whole
	warm     bool  // qs are of an earlier step
}

// powerMatrix is a gradient [n, m] and its matrices [n, k] and [m, k].
type powerMatrix struct {
	grad    int // its number in the bucket
	n, m, k int
	p, q    *tensor.Tensor // views of ps and qs
}

func (h *powerSGD) String() string {
	return fmt.Sprintf("powersgd: %+v", h.o)
}

func (h *powerSGD) check() error {
	if h.o.Rank < 1 || h.o.StartStep < 0 || !(h.o.MinCompression > 0) || !(h.o.Epsilon >= 0) {
		return fmt.Errorf("%s: Rank is at least 1, MinCompression is more than 0, StartStep and Epsilon are not negative", h)
	}
	return nil
}

func (h *powerSGD) Average(ctx context.Context, group *dist.Group, b *GradBucket) (*tensor.Tensor, error) {
	if b.IsLast {
		defer func() { h.step++ }()
	}
	if h.step < h.o.StartStep || b.Buffer.DType() != tensor.Float32 {
		b.Buffer.Scale(1 / float64(group.Size()))
		return b.Buffer, group.AllReduce(ctx, b.Buffer, dist.Sum)
	}
	s := h.bucket(group, b)
	if s.errors != nil {
		b.Buffer.Axpy(1, s.errors)
		s.errors.CopyFrom(b.Buffer)
	}
	h.rightMatrices(s)
	for _, m := range s.matrices {
		m.p.CopyFrom(m.of(b).MatMul(m.q))
	}
	if err := h.sumLeft(ctx, group, b, s); err != nil {
		return nil, err
	}
	if len(s.matrices) > 0 {
		if err := h.sumRight(ctx, group, b, s); err != nil {
			return nil, err
		}
	}
	if s.errors != nil {
		s.errors.Axpy(-1, b.Buffer)
		if !allFinite(s.errors) {
			s.errors.Fill(0)
		}
	}
	// The right matrices are sums, the same on all ranks, and so is what begins anew.
	s.warm = !h.o.ColdStart && (s.qs == nil || allFinite(s.qs))
	return b.Buffer, nil
}

// bucket returns what a bucket keeps.
func (h *powerSGD) bucket(group *dist.Group, b *GradBucket) *powerBucket {
	s := h.buckets[b.Index]
	if s == nil {
		s = h.newBucket(group, b)
		h.buckets[b.Index] = s
	}
	return s
}

func allFinite(t *tensor.Tensor) (yes bool) {
	t.WithFloat32s(func(v []float32) {
		yes = !slices.ContainsFunc(v, func(x float32) bool { return !isFinite32(x) })
	})
	return yes
}

// of returns the gradient as a matrix.
func (m powerMatrix) of(b *GradBucket) *tensor.Tensor { return b.Grads[m.grad].Reshape(m.n, m.m) }

// powerDivision is which gradients of a bucket are compressed.
type powerDivision struct {
	matrices             []powerMatrix // without p and q; those of one shape come together
	rest                 []int         // the gradients that are averaged whole
	numWhole, numP, numQ int           // elements of rest, and of all left and right matrices
}

// divide says which gradients of a bucket are compressed. Those of one shape come together, as in
// PyTorch's hook, which draws random numbers in this order.
func (h *powerSGD) divide(b *GradBucket) (d powerDivision) {
	type shape struct{ n, m int }
	byShape := map[shape][]powerMatrix{}
	var order []shape
	for i, g := range b.Grads {
		size := g.NumElems()
		var at shape
		if len(g.Shape()) > 0 && size > 0 {
			at = shape{g.Dim(0), size / g.Dim(0)}
		}
		k := min(at.n, at.m, h.o.Rank)
		if !(float64((at.n+at.m)*k)*h.o.MinCompression < float64(at.n*at.m)) {
			d.rest = append(d.rest, i)
			d.numWhole += size
			continue
		}
		if byShape[at] == nil {
			order = append(order, at)
		}
		byShape[at] = append(byShape[at], powerMatrix{grad: i, n: at.n, m: at.m, k: k})
		d.numP += at.n * k
		d.numQ += at.m * k
	}
	for _, at := range order {
		d.matrices = append(d.matrices, byShape[at]...)
	}
	return d
}

// kept returns how many elements the hook keeps for a bucket between steps.
func (h *powerSGD) kept(b *GradBucket) int {
	if b.Buffer.DType() != tensor.Float32 {
		return 0
	}
	d := h.divide(b)
	n := d.numWhole + d.numP + d.numQ
	if !h.o.NoErrorFeedback {
		n += b.Buffer.NumElems()
	}
	return n
}

// newBucket makes what the hook keeps for a bucket.
func (h *powerSGD) newBucket(group *dist.Group, b *GradBucket) *powerBucket {
	d := h.divide(b)
	s := &powerBucket{rest: d.rest, matrices: d.matrices}
	dev, alloc := b.Buffer.Device(), memoryFor(group)
	if d.numWhole > 0 {
		s.whole = alloc(dev, tensor.Float32, d.numWhole)
	}
	if d.numP > 0 {
		s.ps, s.qs = alloc(dev, tensor.Float32, d.numP), alloc(dev, tensor.Float32, d.numQ)
		s.qs.Fill(0)
	}
	if !h.o.NoErrorFeedback {
		s.errors = tensor.New(dev, tensor.Float32, b.Buffer.NumElems())
		s.errors.Fill(0)
	}
	atP, atQ := 0, 0
	for i := range s.matrices {
		m := &s.matrices[i]
		m.p = s.ps.Narrow(0, atP, m.n*m.k).Reshape(m.n, m.k)
		m.q = s.qs.Narrow(0, atQ, m.m*m.k).Reshape(m.m, m.k)
		atP, atQ = atP+m.n*m.k, atQ+m.m*m.k
	}
	return s
}

// rightMatrices makes the columns of all q orthonormal: those of the step before, or random ones.
func (h *powerSGD) rightMatrices(s *powerBucket) {
	var draw *normalDraws
	if !s.warm {
		draw = &normalDraws{mt: random.NewMT(h.drawSeed())}
	}
	for _, m := range s.matrices {
		m.q.WithFloat32s(func(q []float32) {
			if draw != nil {
				draw.randn(q)
			}
			h.orthonormalize(q, m.k, true)
		})
	}
}

// sumLeft sums the left matrices, and averages what is not compressed.
func (h *powerSGD) sumLeft(ctx context.Context, group *dist.Group, b *GradBucket, s *powerBucket) error {
	at := 0
	for _, i := range s.rest {
		n := b.Grads[i].NumElems()
		s.whole.Narrow(0, at, n).CopyFrom(b.Grads[i].Reshape(n))
		at += n
	}
	var sums []*tensor.Tensor
	for _, t := range []*tensor.Tensor{s.whole, s.ps} {
		if t != nil {
			sums = append(sums, t)
		}
	}
	if err := group.AllReduceCoalesced(ctx, sums, dist.Sum); err != nil {
		return err
	}
	if s.whole != nil {
		s.whole.Scale(1 / float64(group.Size()))
	}
	at = 0
	for _, i := range s.rest {
		n := b.Grads[i].NumElems()
		b.Grads[i].CopyFrom(s.whole.Narrow(0, at, n).Reshape(b.Grads[i].Shape()...))
		at += n
	}
	return nil
}

// sumRight computes and averages the right matrices, and puts the products into the bucket.
func (h *powerSGD) sumRight(ctx context.Context, group *dist.Group, b *GradBucket, s *powerBucket) error {
	for _, m := range s.matrices {
		m.p.WithFloat32s(func(p []float32) { h.orthonormalize(p, m.k, false) })
		m.q.CopyFrom(m.of(b).Transpose(0, 1).MatMul(m.p))
	}
	if err := group.AllReduce(ctx, s.qs, dist.Sum); err != nil {
		return err
	}
	s.qs.Scale(1 / float64(group.Size()))
	for _, m := range s.matrices {
		m.of(b).CopyFrom(m.p.MatMul(m.q.Transpose(0, 1)))
	}
	return nil
}

// orthonormalize makes the k columns of a matrix orthonormal, one after the other
// (Gram-Schmidt). A column of zeros stays so, or gets random numbers first.
func (h *powerSGD) orthonormalize(a []float32, k int, draw bool) {
	for c := range k {
		length := columnLength(a, c, k)
		if length == 0 && draw {
			fresh := make([]float32, len(a)/k)
			(&normalDraws{mt: random.NewMT(h.drawSeed())}).randn(fresh)
			for i, v := range fresh {
				a[i*k+c] = v
			}
			for before := range c {
				subtract(a, before, c, k)
			}
			length = columnLength(a, c, k)
		}
		if length += h.o.Epsilon; length == 0 {
			continue
		}
		for i := c; i < len(a); i += k {
			a[i] = float32(float64(a[i]) / length)
		}
		for rest := c + 1; rest < k; rest++ {
			subtract(a, c, rest, k)
		}
	}
}

func columnLength(a []float32, c, k int) float64 {
	sum := 0.0
	for i := c; i < len(a); i += k {
		sum += float64(a[i]) * float64(a[i])
	}
	return math.Sqrt(sum)
}

// subtract takes from a column its share along another one, whose length is 1.
func subtract(a []float32, along, column, k int) {
	dot := 0.0
	for i := 0; i < len(a); i += k {
		dot += float64(a[i+along]) * float64(a[i+column])
	}
	for i := 0; i < len(a); i += k {
		a[i+column] -= float32(dot * float64(a[i+along]))
	}
}

// drawSeed is numpy's RandomState.randint(1_000_000_000): words below the next power of two,
// until one is small enough.
func (h *powerSGD) drawSeed() int64 {
	for {
		h.drawn++
		if v := int64(h.rng.Uint32() & (1<<30 - 1)); v < 1_000_000_000 {
			return v
		}
	}
}

// normalDraws are the normal numbers of a generator of PyTorch.
type normalDraws struct {
	mt   *random.MT
	next float64 // the second number of a pair, if has
	has  bool
}

// randn fills dst as torch.randn does on a CPU: 16 numbers at a time, of which 8 uniform ones
// give the lengths and 8 the angles. Fewer than 16 come in pairs of float64, of which the second
// is kept for the next draw.
func (g *normalDraws) randn(dst []float32) {
	if len(dst) < 16 {
		for i := range dst {
			if g.has {
				dst[i], g.has = float32(g.next), false
				continue
			}
			angle, u := 2*math.Pi*g.mt.Float64(), g.mt.Float64()
			length := math.Sqrt(-2 * math.Log1p(-u))
			dst[i], g.next, g.has = float32(length*math.Cos(angle)), length*math.Sin(angle), true
		}
		return
	}
	for i := range dst {
		dst[i] = g.mt.Float32()
	}
	at := 0
	for ; at <= len(dst)-16; at += 16 {
		normals(dst[at : at+16])
	}
	if at < len(dst) { // the last 16 anew
		last := dst[len(dst)-16:]
		for i := range last {
			last[i] = g.mt.Float32()
		}
		normals(last)
	}
}

// normals makes 16 normal numbers of 16 uniform ones.
func normals(v []float32) {
	for j := range 8 {
		length := math.Sqrt(-2 * math.Log(float64(1-v[j])))
		angle := 2 * math.Pi * float64(v[j+8])
		v[j], v[j+8] = float32(length*math.Cos(angle)), float32(length*math.Sin(angle))
	}
}
