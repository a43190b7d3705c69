// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/dist/internal/backend"
	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/dist/operation"
	"github.com/cohort-ml/cohort/tensor"
)

// TestBackendNames: a backend is chosen by its name, or by a name for each kind of device.
func TestBackendNames(t *testing.T) {
	for name, want := range map[string]string{
		"native": "", "gloo": "", "cpu:native": "", "cpu:gloo": "",
		"nccl":                  `no backend "nccl": there are "native" and "gloo"`,
		"cpu:native,cuda:nccl":  `no backend "nccl"`,
		"cuda:native":           `backend "native" does not move the memory of "cuda"`,
		"native,cpu:gloo":       "there are two backends",
		"":                      `no backend ""`,
		"cpu:native,cpu:native": "there are two backends",
	} {
		var o options
		err := o.apply([]Option{WithBackend(name)})
		if want == "" {
			if err != nil || o.backendFor(hostKind) == "" {
				t.Errorf("%q: %v, and the host has %q", name, err, o.backendFor(hostKind))
			}
		} else if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", name, err, want)
		}
	}
}

// TestDeviceWithoutBackend: a tensor that no backend reaches is named, and the group goes on.
func TestDeviceWithoutBackend(t *testing.T) {
	err := Spawn(t.Context(), 2, func(ctx context.Context, g *Group) error {
		there := tensor.Zeros(3).ToDevice(tensor.Meta)
		calls := map[string]error{
			"the tensor": g.AllReduce(ctx, there, Sum),
			"source 1":   g.ReduceScatterList(ctx, tensor.Zeros(3), []*tensor.Tensor{tensor.Zeros(3), there}, Sum),
		}
		for what, err := range calls {
			var no *DeviceError
			if !errors.As(err, &no) || no.Tensor != what || no.Device != tensor.Meta.Name() || no.Backend != "native" || no.Group != "world" || no.Rank != g.Rank() {
				t.Errorf("%s: %v", what, err)
			}
		}
		return g.Barrier(ctx)
	})
	if err != nil {
		t.Error(err)
	}
}

// stream is a communicator for a device of tests: it moves data by another communicator as
// soon as somebody waits for it.
type stream struct {
	backend.Communicator
	waits int
}

// later is the end of a call on a [stream].
type later struct {
	s  *stream
	do func() error
}

func (l *later) Wait(context.Context) error {
	l.s.waits++
	return l.do()
}

func (s *stream) Enqueue(ctx context.Context, c operation.Call, in, out collective.Data) (backend.Completion, error) {
	if in.Device != "toy:0" {
		return nil, errors.New("the data is on " + in.Device)
	}
	return &later{s, func() error { return s.Collective(ctx, c, in, out) }}, nil
}

// TestWorkOnDevice: a call on a device's memory goes to the communicator for its kind, and
// whoever waits for its work waits for the device.
func TestWorkOnDevice(t *testing.T) {
	err := Spawn(t.Context(), 2, func(ctx context.Context, g *Group) error {
		s := &stream{Communicator: g.comm}
		g.comms = map[string]backend.Communicator{"toy": s}
		// Closing the group closes both communicators, which are one.
		defer func() { g.comms = nil }()
		reduce := func(x *tensor.Tensor) *request {
			r := g.allReduce(ctx, x, Sum)
			r.device, r.in.data.Device = "toy:0", "toy:0"
			return r
		}
		x, y := vec(2), vec(2)
		if err := g.call(reduce(x)); err != nil || s.waits != 1 {
			t.Errorf("a call that is waited for: %v, %d waits", err, s.waits)
		}
		w := g.callAsync(reduce(y))
		<-w.Done()
		if s.waits != 1 {
			t.Error("the device was waited for before anybody asked")
		}
		if err := w.Wait(ctx); err != nil || s.waits != 2 {
			t.Errorf("work: %v, %d waits", err, s.waits)
		}
		return g.Barrier(ctx)
	})
	if err != nil {
		t.Error(err)
	}
}
