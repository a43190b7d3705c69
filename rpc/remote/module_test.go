// SPDX-License-Identifier: Apache-2.0

package remote

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/rpc"
	"github.com/cohort-ml/cohort/rpc/autograd"
	"github.com/cohort-ml/cohort/rpc/internal/agenttest"
	"github.com/cohort-ml/cohort/tensor"
)

func TestMain(m *testing.M) {
	// The CPU's threads live as long as the process.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/cohort-ml/cohort/internal/work.(*worker).serve"))
}

var (
	newLayer  = rpc.NewMaker[[]int, nn.Module]("test.layer")
	gradients = rpc.NewOn[nn.Module, struct{}, []*tensor.Tensor]("test.gradients")
)

// layer is the part that lives elsewhere; equal for equal seeds.
func layer(seed int64, sizes []int) nn.Module {
	b := &nn.Build{Generator: tensor.NewGenerator(seed)}
	return nn.NewSequential(nn.NewLinear(b, sizes[0], sizes[1]), &nn.ReLU{}, nn.NewLinear(b, sizes[1], sizes[2]))
}

func agents(t *testing.T) []*rpc.Agent {
	t.Helper()
	network, mem := rpc.NewNetwork(), store.NewMemory()
	return agenttest.Start(t, agenttest.Pipe, 2, func(ctx context.Context, rank int) (*rpc.Agent, error) {
		return rpc.Init(ctx, fmt.Sprintf("w%d", rank), rpc.WithNetwork(network), rpc.WithStore(mem, rank, 2),
			autograd.WithEngine(), Serve(),
			rpc.ServeMaker(newLayer, func(_ context.Context, sizes []int) (nn.Module, error) {
				if len(sizes) != 3 {
					return nil, errors.New("want three sizes")
				}
				return layer(7, sizes), nil
			}),
			rpc.ServeOn(gradients, func(ctx context.Context, m nn.Module, _ struct{}) (grads []*tensor.Tensor, _ error) {
				for _, p := range nn.Parameters(m) {
					grads = append(grads, autograd.From(ctx).Gradient(p))
				}
				return grads, nil
			}))
	})
}

// A model with a part elsewhere has the outputs, and the gradients, of one process,
// bit for bit.
func TestModule(t *testing.T) {
	a := agents(t)[0]
	ctx := t.Context()
	sizes := []int{8, 16, 4}
	there, err := New(ctx, a.Peer("w1"), newLayer, sizes)
	if err != nil {
		t.Fatal(err)
	}
	defer there.Release()
	first := func() *nn.Linear { return nn.NewLinear(&nn.Build{Generator: tensor.NewGenerator(3)}, 5, 8) }
	here, here2 := layer(7, sizes), first()
	whole, parted := nn.NewSequential(here2, here), nn.NewSequential(first(), there)
	x := tensor.Zeros(6, 5)
	tensor.NewGenerator(1).Uniform(x, -1, 1)

	eval := nn.Evaluation(ctx)
	defer eval.Close()
	if want, got := eval.Call(whole, x), eval.Call(parted, x); !slices.Equal(want.Float32s(), got.Float32s()) {
		t.Errorf("evaluation: %v, want %v", got, want)
	}

	c := nn.Training(ctx)
	defer c.Close()
	want := c.Call(whole, x).Square().Sum()
	if err := want.Backward(ctx); err != nil {
		t.Fatal(err)
	}
	dc, err := autograd.NewContext(a)
	if err != nil {
		t.Fatal(err)
	}
	defer dc.Close()
	pass, err := dc.Pass(ctx)
	if err != nil {
		t.Fatal(err)
	}
	got := pass.Call(parted, x).Square().Sum()
	if got.Item() != want.Item() {
		t.Errorf("loss %v, want %v", got.Item(), want.Item())
	}
	if err := dc.Backward(ctx, got); err != nil {
		t.Fatal(err)
	}
	far, err := gradients.Call(pass, there.Ref(), struct{}{})
	if err != nil {
		t.Fatal(err)
	}
	all := append([]*tensor.Tensor{dc.Gradient(parted.Layers[0].(*nn.Linear).Weight), dc.Gradient(parted.Layers[0].(*nn.Linear).Bias)}, far...)
	for i, p := range nn.Parameters(whole) {
		if !slices.Equal(all[i].Float32s(), p.Grad().Float32s()) {
			t.Errorf("gradient of parameter %d differs from that of one process", i)
		}
	}
	refs, err := there.Parameters(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if len(refs) != len(nn.Parameters(here)) || refs[0].OwnerName() != "w1" {
		t.Errorf("%d references to parameters, the first at %s", len(refs), refs[0].OwnerName())
	}
	for _, r := range refs {
		r.Release()
	}
}

// A module elsewhere with several inputs and results, some of them nil, has the values
// and gradients of one process.
func TestModuleOfSeveralInputs(t *testing.T) {
	all := agents(t)
	a := all[0]
	lstm := func() *nn.LSTM {
		return nn.NewLSTM(&nn.Build{Generator: tensor.NewGenerator(5)}, 3, 4, nn.RNNOptions{})
	}
	newLSTM := rpc.NewMaker[struct{}, nn.Module]("test.lstm")
	if err := all[1].Offer(rpc.ServeMaker(newLSTM, func(context.Context, struct{}) (nn.Module, error) { return lstm(), nil })); err != nil {
		t.Fatal(err)
	}
	there, err := New(t.Context(), a.Peer("w1"), newLSTM, struct{}{})
	if err != nil {
		t.Fatal(err)
	}
	defer there.Release()
	here, x := lstm(), tensor.Zeros(2, 6, 3)
	tensor.NewGenerator(1).Uniform(x, -1, 1)
	// twice runs a module from no states on, and again from those that it came to.
	twice := func(c *nn.Ctx, m nn.ModuleN) *tensor.Tensor {
		y := c.CallN(m, x, nil, nil)
		z := c.CallN(m, x, y[1], y[2])
		return y[0].Mul(z[0]).Sum().Add(z[2].Square().Sum())
	}

	eval := nn.Evaluation(t.Context())
	defer eval.Close()
	want := twice(eval, here).Item()
	if got := twice(eval, there).Item(); got != want {
		t.Errorf("evaluation: %v, want %v", got, want)
	}
	if _, err := nn.Backward(t.Context(), func(c *nn.Ctx) *tensor.Tensor { return twice(c, here) }); err != nil {
		t.Fatal(err)
	}
	dc, err := autograd.NewContext(a)
	if err != nil {
		t.Fatal(err)
	}
	defer dc.Close()
	pass, err := dc.Pass(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	loss := twice(pass, there)
	if loss.Item() != want {
		t.Errorf("loss %v, want %v", loss.Item(), want)
	}
	if err := dc.Backward(t.Context(), loss); err != nil {
		t.Fatal(err)
	}
	far, err := gradients.Call(pass, there.Ref(), struct{}{})
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range nn.Parameters(here) {
		for k, g := range p.Grad().Float32s() {
			if d := far[i].Float32s()[k] - g; d > 1e-5 || d < -1e-5 {
				t.Errorf("gradient of %s: %v, want %v", p.Name(), far[i], p.Grad())
				break
			}
		}
	}

	one, err := New(t.Context(), a.Peer("w1"), newLayer, []int{3, 4, 4})
	if err != nil {
		t.Fatal(err)
	}
	defer one.Release()
	err = func() (err error) {
		defer eval.Recover(&err)
		eval.CallN(one, x, nil)
		return nil
	}()
	if err == nil || !strings.Contains(err.Error(), "*nn.Sequential has one input and one result") {
		t.Errorf("several inputs for a module of one: %v", err)
	}
}

// Parameters has those of this process first, then those of each part elsewhere, and
// names the part that cannot give them.
func TestParameters(t *testing.T) {
	a := agents(t)[0]
	made := func(sizes ...int) *Module {
		m, err := New(t.Context(), a.Peer("w1"), newLayer, sizes)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	one, two := made(8, 16, 4), made(4, 2, 3)
	head := nn.NewLinear(&nn.Build{}, 3, 8)
	refs, err := Parameters(t.Context(), a, nn.NewSequential(one, two, head, one))
	if err != nil {
		t.Fatal(err)
	}
	var at []string
	for _, r := range refs {
		at = append(at, r.OwnerName())
		defer r.Release()
	}
	if want := strings.Fields("w0 w0 w1 w1 w1 w1 w1 w1 w1 w1"); !slices.Equal(at, want) {
		t.Errorf("the parameters are at %v, want %v", at, want)
	}
	for i, p := range nn.Parameters(head) {
		if got, err := refs[i].LocalValue(); err != nil || got != p {
			t.Errorf("reference %d is to %p (%v), want %p", i, got, err, p)
		}
	}
	bad := made(1)
	if _, err := Parameters(t.Context(), a, nn.NewSequential(head, bad)); err == nil || !strings.Contains(err.Error(), "parameters of 1: ") || !strings.Contains(err.Error(), "three sizes") {
		t.Errorf("a part that could not be made: %v", err)
	}
}

// Several users of one module may ask for its parameters at once, and while others
// train it.
func TestParametersAtOnce(t *testing.T) {
	a := agents(t)[0]
	m, err := New(t.Context(), a.Peer("w1"), newLayer, []int{8, 16, 4})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Release()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 3 {
				refs, err := m.Parameters(t.Context())
				if err != nil || len(refs) != 4 {
					t.Errorf("%d parameters, %v", len(refs), err)
				}
				dc, err := autograd.NewContext(a)
				if err != nil {
					t.Error(err)
					return
				}
				c, err := dc.Pass(t.Context())
				if err == nil {
					err = dc.Backward(t.Context(), c.Call(m, tensor.Zeros(2, 8)).Sum())
				}
				if err != nil {
					t.Error(err)
				}
				dc.Close()
			}
		})
	}
	wg.Wait()
}

// What goes wrong elsewhere is an error of the step.
func TestModuleFails(t *testing.T) {
	all := agents(t)
	a := all[0]
	step := func(m nn.Module, x *tensor.Tensor) (err error) {
		c := nn.Evaluation(t.Context())
		defer c.Close()
		defer c.Recover(&err)
		c.Call(m, x)
		return nil
	}
	x := tensor.Zeros(2, 8)
	bad, err := New(t.Context(), a.Peer("w1"), newLayer, []int{1})
	if err != nil {
		t.Fatal(err)
	}
	if err := step(bad, x); err == nil || !strings.Contains(err.Error(), "three sizes") {
		t.Errorf("a module that could not be made: %v", err)
	}
	good, err := New(t.Context(), a.Peer("w1"), newLayer, []int{8, 16, 4})
	if err != nil {
		t.Fatal(err)
	}
	var te *nn.ForwardError
	if err := step(good, tensor.Zeros(2, 9)); err == nil || !errors.As(err, &te) || !strings.Contains(err.Error(), "w1") || strings.Contains(err.Error(), "module.go") {
		t.Errorf("an input of the wrong shape: %v", err)
	}
	if err := func() (err error) {
		c := nn.Training(t.Context())
		defer c.Close()
		defer c.Recover(&err)
		c.Call(good, x)
		return nil
	}(); err == nil || !strings.Contains(err.Error(), "autograd.Context.Pass") {
		t.Errorf("training outside of a context: %v", err)
	}
	good.Release()
	bad.Release()
	if err := step(good, x); rpc.KindOf(err) != rpc.KindReleased {
		t.Errorf("a module that has been released: %v", err)
	}
	for end := time.Now().Add(30 * time.Second); all[1].References().Values > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the module is still there")
		}
	}
}

// Several inputs on their way at once have the outputs, and the gradients, of one after
// the other; what goes wrong is the future's error.
func TestModuleAsync(t *testing.T) {
	a := agents(t)[0]
	ctx := t.Context()
	there, err := New(ctx, a.Peer("w1"), newLayer, []int{8, 16, 4})
	if err != nil {
		t.Fatal(err)
	}
	defer there.Release()
	x := tensor.Zeros(6, 8)
	tensor.NewGenerator(1).Uniform(x, -1, 1)
	loss := func(atOnce bool) (float64, []*tensor.Tensor) {
		dc, err := autograd.NewContext(a)
		if err != nil {
			t.Fatal(err)
		}
		defer dc.Close()
		pass, err := dc.Pass(ctx)
		if err != nil {
			t.Fatal(err)
		}
		var out []*tensor.Tensor
		var answers []*rpc.Future[*tensor.Tensor]
		for _, part := range x.Chunk(3, 0) {
			if atOnce {
				answers = append(answers, there.Async(pass, part))
			} else {
				out = append(out, pass.Call(there, part))
			}
		}
		if atOnce {
			if out, err = rpc.WaitAll(ctx, answers...); err != nil {
				t.Fatal(err)
			}
		}
		l := tensor.Cat(0, out...).Square().Sum()
		if err := dc.Backward(ctx, l); err != nil {
			t.Fatal(err)
		}
		far, err := gradients.Call(pass, there.Ref(), struct{}{})
		if err != nil {
			t.Fatal(err)
		}
		return l.Item(), far
	}
	want, wantGrads := loss(false)
	got, grads := loss(true)
	if got != want {
		t.Errorf("loss %v, want %v", got, want)
	}
	for i, g := range grads {
		// The calls may run in any order, and so may their sums.
		if diff := g.Sub(wantGrads[i]).Abs().AMax().Item(); diff > 1e-5 {
			t.Errorf("gradient %d differs by %v", i, diff)
		}
	}

	training := nn.Training(ctx)
	defer training.Close()
	if _, err := there.Async(training, x).Wait(ctx); err == nil || !strings.Contains(err.Error(), "autograd.Context.Pass") {
		t.Errorf("training outside of a context: %v", err)
	}
	eval := nn.Evaluation(ctx)
	defer eval.Close()
	if _, err := there.Async(eval, tensor.Zeros(2, 9)).Wait(ctx); rpc.KindOf(err) != rpc.KindPanic && rpc.KindOf(err) != rpc.KindApplication {
		t.Errorf("an input of the wrong shape: %v", err)
	}
}
