// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/cohort-ml/cohort/internal/seeded"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// TestRanksRoundAsOne: computing in bfloat16, the ranks of a mesh are no further from float32 than
// one rank is. That is what the law leaves to rounding.
func TestRanksRoundAsOne(t *testing.T) {
	t.Parallel()
	seed, n, sum := seeded.Of(t), 0, 0.0
	for i := 0; n < 10; i++ {
		d := drawMesh(seed<<32+uint64(i), meshAxes)
		if !d.BFloat16 || d.Sizes.CP*d.Sizes.TP == 1 { // other axes compute what one rank does
			continue
		}
		d.Steps, d.File = 1, false
		one, err := d.alone(t.Context(), 0)
		if errors.Is(err, errTie) {
			continue
		} else if err != nil {
			t.Fatal(err)
		}
		ranks, err := d.onRanks(t, d.Sizes, nil, "")
		if errors.Is(isRefused(err), errRefused) {
			continue
		} else if err != nil {
			t.Fatal(err)
		}
		exact := d
		exact.BFloat16 = false
		want, err := exact.alone(t.Context(), 0)
		if err != nil && !errors.Is(err, errTie) {
			t.Fatal(err)
		}
		r := rootMeanSquare(ranks.grads, want.grads) / rootMeanSquare(one.grads, want.grads)
		t.Logf("%+v: gradients of ranks are %.3f times as far from float32 as those of one", d.Sizes, r)
		if !(r < 3) { // of a tiny model one draw scatters: 2.1 on one kind of processor, less than 2 on others
			t.Errorf("they are much further from it: repeat it by -run TestLawOfMeshes -draw '%v'", d)
		}
		n, sum = n+1, sum+math.Log(r)
	}
	if mean := math.Exp(sum / float64(n)); !(mean < 1.2) {
		t.Errorf("gradients of ranks are %.3f times as far from float32 as those of one", mean)
	}
}

// rootMeanSquare is how far gradients are apart, by the size of each.
func rootMeanSquare(a, b map[string]part) float64 {
	sum := 0.0
	for name, want := range b {
		most, off := 0.0, 0.0
		for i, e := range want.elements {
			most, off = max(most, math.Abs(e)), off+(a[name].elements[i]-e)*(a[name].elements[i]-e)
		}
		if most > 0 {
			sum += off / most / most / float64(len(want.elements))
		}
	}
	return math.Sqrt(sum / float64(len(b)))
}

// rounding is how far one rank's results may be from themselves: by its absolute
// error. Sums that nearly cancel have more of it than the limits allow.
type rounding struct {
	losses, evaluations, norms, scales []float64 // of each step; none is 0
	grads, state                       map[string]float64
}

// nth returns one of the numbers of steps, 0 if there is none.
func nth(steps []float64, i int) float64 {
	if i < len(steps) {
		return steps[i]
	}
	return 0
}

// raise makes the most that the numbers of steps may be off as large as so many times the
// difference of two outcomes.
func raise(most *[]float64, times float64, a, b []float64) {
	for i := range b {
		if i == len(*most) {
			*most = append(*most, 0)
		}
		(*most)[i] = max((*most)[i], times*math.Abs(a[i]-b[i]))
	}
}

// ownRounding is the rounding of one rank in a draw, which is measured when it is needed.
type ownRounding struct {
	measure  func() (rounding, error)
	measured *rounding
	count    *int // of the draws that needed it; nil for none
}

// judge compares by the plain limits, and where these are not kept by one rank's rounding.
func (o *ownRounding) judge(compare func(own rounding) error) error {
	if o.measured == nil {
		if compare(rounding{}) == nil {
			return nil
		}
		own, err := o.measure()
		if err != nil {
			return fmt.Errorf("one rank: %w", err)
		}
		o.measured = &own
		if o.count != nil {
			*o.count++
		}
	}
	return compare(*o.measured)
}

// rounding trains variants of one rank. In bfloat16 most of them round alike. There, two things
// tell what rounding makes of a step: how far one rank is from float32, and how far it gets from
// itself if its weights are off by as much as bfloat16 rounds a value. Ranks may be twice as far,
// for both sides round; see TestRanksRoundAsOne.
func (d meshDraw) rounding(ctx context.Context, want outcome) (rounding, error) {
	share := 1e-6
	if d.BFloat16 {
		share = 1e-2
	}
	own, err := roundingOf(want, share, func() (map[string]float64, error) { return d.terms(ctx) },
		func(variant int) (outcome, error) { return d.alone(ctx, variant) })
	if err != nil || !d.BFloat16 {
		return own, err
	}
	d.BFloat16 = false
	exact, err := d.alone(ctx, 0)
	if errors.Is(err, errTie) { // in another step: float32 may choose otherwise there
		err = nil
	}
	if err != nil {
		return own, err
	}
	own.widen(2, exact, want)
	d.BFloat16 = true
	for variant := numVariants + 1; variant <= 2*numVariants; variant++ {
		shaken, err := d.alone(ctx, variant)
		if err != nil {
			return own, err
		}
		own.widen(2, shaken, want)
	}
	return own, nil
}

// shake changes each weight by up to the most by which bfloat16 rounds it.
func shake(model any, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 20))
	for _, p := range nn.Parameters(model) {
		values := elements(p.Data())
		for i := range values {
			values[i] *= 1 + (2*r.Float64()-1)/256
		}
		p.Data().CopyFrom(tensor.FromFloat64(values, p.Data().Shape()...).To(p.Data().DType()))
	}
}

// numVariants is how many ways to round otherwise a rounding is taken from.
const numVariants = 4

// roundingOf takes ten times what is furthest from want among variants. Gradients may
// also be off by a share of what the single batches contribute: their terms.
func roundingOf(want outcome, share float64, terms func() (map[string]float64, error), train func(variant int) (outcome, error)) (rounding, error) {
	var r rounding
	var err error
	if r.grads, err = terms(); err != nil {
		return r, err
	}
	largest := 0.0
	for _, g := range want.grads {
		for _, e := range g.elements {
			largest = max(largest, math.Abs(e))
		}
	}
	for name := range r.grads { // some gradients are zero but for rounding
		r.grads[name] = max(share*r.grads[name], share/2*largest)
	}
	r.state = make(map[string]float64)
	for variant := 1; variant <= numVariants; variant++ {
		other, err := train(variant)
		if err != nil {
			return r, fmt.Errorf("variant %d: %w", variant, err)
		}
		r.widen(10, other, want)
	}
	return r, nil
}

// widen makes it at least so many times the difference of two outcomes.
func (r *rounding) widen(times float64, a, b outcome) {
	raise(&r.losses, times, a.losses, b.losses)
	raise(&r.evaluations, times, a.evaluations, b.evaluations)
	raise(&r.norms, times, a.norms, b.norms)
	raise(&r.scales, times, a.scales, b.scales)
	spread(r.grads, times, a.grads, b.grads)
	spread(r.state, times, a.state, b.state)
}

// spread raises the most that elements may be off to so many times the difference of two
// outcomes.
func spread(most map[string]float64, times float64, a, b map[string]part) {
	for name := range b {
		for i, e := range a[name].elements {
			most[name] = max(most[name], times*math.Abs(e-b[name].elements[i]))
		}
	}
}
