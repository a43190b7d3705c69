// SPDX-License-Identifier: Apache-2.0

package autograd

import (
	"testing"
	"time"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// TestAGradientThatComesWhileItIsAskedFor is taken, though its receiver, whose part is
// over by the time it is asked, has forgotten what it was sent.
func TestAGradientThatComesWhileItIsAskedFor(t *testing.T) {
	weights := []*nn.Parameter{param(1, 4, 4), param(2, 4, 4)}
	x := tensor.FromFloat32(values(8, 0), 2, 4)
	want := chain(t, weights, x)
	cl := newCluster(2)
	asked := make(chan struct{}, 1)
	cl.before = func(from, to int, what string) error {
		switch {
		case what == "gradient" && to == 0:
			<-asked // the gradient sets out when it is asked for
		case what == "missing":
			asked <- struct{}{}
			time.Sleep(50 * time.Millisecond) // on its way, and the walk at the other end ends meanwhile
		}
		return nil
	}
	dc := newContext(cl.engines[0], nil)
	defer dc.Close()
	c, err := dc.Pass(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	out, err := layer(weights[0])(c, []*tensor.Tensor{x})
	if err != nil {
		t.Fatal(err)
	}
	if out, err = cl.async(c, 0, 1, "layer", layer(weights[1]), out...)(); err != nil {
		t.Fatal(err)
	}
	if err := dc.Backward(soon(t), out[0].Mul(out[0]).Mean()); err != nil {
		t.Fatal(err)
	}
	wantBits(t, "layer 0", dc.Gradient(weights[0]), want[0])
}
