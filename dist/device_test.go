// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cohort-ml/cohort/dist/internal/backend"
	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/dist/operation"
	"github.com/cohort-ml/cohort/internal/device/lazy"
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

// stream is a communicator for the memory of the device "lazy": it moves data by that of the
// host as soon as somebody waits for it.
type stream struct {
	host   backend.Communicator // nil in a group of one rank
	waits  atomic.Int32
	closed int
	failed error // what Enqueue returns
}

// later is the end of a call on a [stream].
type later struct {
	s  *stream
	do func() error
}

func (l *later) Wait(context.Context) error {
	l.s.waits.Add(1)
	return l.do()
}

func (s *stream) Enqueue(ctx context.Context, c operation.Call, in, out collective.Data, owner any) (backend.Completion, error) {
	if kindOf(in.Device) != "lazy" || owner == nil {
		return nil, fmt.Errorf("the data is on device %q, kept by %v", in.Device, owner)
	}
	if s.failed != nil {
		return nil, s.failed
	}
	return &later{s, func() error {
		switch {
		case s.host == nil:
			return collective.Alone(&c, in, out)
		case c.Op == operation.Send:
			return s.host.Send(ctx, c, in)
		case c.Op == operation.Recv:
			return s.host.Recv(ctx, c, in)
		}
		return s.host.Collective(ctx, c, in, out)
	}}, nil
}

func (s *stream) Close() error { s.closed++; return nil }
func (s *stream) Fail(error)   {}

// The group of a stream does not ask it for anything else.
func (s *stream) Collective(context.Context, operation.Call, collective.Data, collective.Data) error {
	panic("Collective in place of Enqueue")
}
func (s *stream) Send(context.Context, operation.Call, collective.Data) error {
	panic("Send in place of Enqueue")
}
func (s *stream) Recv(context.Context, operation.Call, collective.Data) error {
	panic("Recv in place of Enqueue")
}
func (s *stream) AwaitAny(context.Context, operation.Call) (int, error) {
	panic("AwaitAny on a device")
}
func (s *stream) Trouble(operation.Call) error { panic("Trouble of a device") }
func (s *stream) HasLeft(int) bool             { panic("HasLeft of a device") }

// plain is a communicator for the memory of the device "lazy" whose calls have ended when
// they return.
type plain struct{ backend.Communicator }

func (plain) Close() error { return nil }

// addBackend adds a backend for the device "lazy" for the time of a test. No group may be
// formed meanwhile by other tests.
func addBackend(t *testing.T, name string, open backend.Open) {
	t.Helper()
	before := backends
	backends = append(slices.Clone(before), backendEntry{name: name, devices: []string{"lazy"}, open: open})
	t.Cleanup(func() { backends = before })
}

// TestBackendTable: what a row of the table says is there.
func TestBackendTable(t *testing.T) {
	for _, b := range backends {
		host := slices.Contains(b.devices, hostKind)
		if host != (b.start != nil) || (len(b.devices) > 1 || !host) != (b.open != nil) {
			t.Errorf("backend %q for %v: start is there: %v, open: %v", b.name, b.devices, b.start != nil, b.open != nil)
		}
	}
}

// TestWorkOnDevice: a call on a device's memory goes to the communicator for its kind, and
// whoever waits for its work waits for the device.
func TestWorkOnDevice(t *testing.T) {
	var mu sync.Mutex
	opened, unwatched, closed := map[string][]*stream{}, 0, 0
	addBackend(t, "toy", func(_ context.Context, s *backend.Spec) (*backend.Membership, error) {
		mu.Lock()
		defer mu.Unlock()
		c := &stream{host: s.Host}
		opened[s.Name] = append(opened[s.Name], c)
		return &backend.Membership{Comm: c, Unwatch: func() { mu.Lock(); unwatched++; mu.Unlock() },
			Close: func() error { mu.Lock(); closed++; mu.Unlock(); return nil }}, nil
	})
	err := Spawn(t.Context(), 2, func(ctx context.Context, g *Group) error {
		late := lazy.New(1)
		defer late.Close()
		on := func(x *tensor.Tensor) *tensor.Tensor { return x.ToDevice(late) }
		holds := func(what string, x *tensor.Tensor, want float32) {
			t.Helper()
			late.Allow(func() {
				for _, got := range x.ToDevice(tensor.CPU()).Float32s() {
					if got != want {
						t.Errorf("%s: rank %d has %v, want %v", what, g.Rank(), got, want)
					}
				}
			})
		}
		s := g.comms["lazy"].(*stream)
		x, y := on(tensor.Full(1, 4)), on(tensor.Full(2, 4))
		late.Run() // what a communicator would do on the device's stream
		if err := g.AllReduce(ctx, x, Sum); err != nil || s.waits.Load() != 1 {
			t.Errorf("a call that is waited for: %v, %d waits", err, s.waits.Load())
		}
		holds("all_reduce", x, 2)
		w := g.AllReduceAsync(ctx, y, Sum)
		<-w.Done()
		if s.waits.Load() != 1 {
			t.Error("the device was waited for before anybody asked")
		}
		if err := w.Wait(ctx); err != nil || s.waits.Load() != 2 {
			t.Errorf("work: %v, %d waits", err, s.waits.Load())
		}
		holds("work", y, 4)
		there, back := on(tensor.Full(float64(g.Rank()), 4)), on(tensor.Zeros(4))
		late.Run()
		if err := g.Batch(ctx, Message{Tensor: there, Peer: 1 - g.Rank()}, Message{Recv: true, Tensor: back, Peer: 1 - g.Rank()}); err != nil {
			t.Error(err)
		}
		holds("a message", back, float32(1-g.Rank()))

		_, anyErr := g.RecvAny(ctx, back)
		for what, err := range map[string]error{
			"a receive from any rank is into the memory of the host": anyErr,
			"do not lie in one piece":                                g.AllReduce(ctx, on(tensor.Zeros(2, 3)).Transpose(0, 1), Sum),
			"is on device lazy, and others of the call are":          g.AllGather(ctx, tensor.Zeros(8), x),
			"others of the call are on device lazy":                  g.AllGather(ctx, on(tensor.Zeros(8)), tensor.Zeros(4)),
		} {
			if err == nil || !strings.Contains(err.Error(), what) {
				t.Errorf("%v, want %q", err, what)
			}
		}

		sub, err := g.NewGroup(ctx, []int{1, 0}, WithName("pair"))
		if err != nil {
			return err
		}
		if sub.comms["lazy"] == g.comms["lazy"] {
			t.Error("two groups have one communicator")
		}
		alone, err := g.NewGroup(ctx, []int{g.Rank()})
		if err != nil {
			return err
		}
		z := on(tensor.Full(3, 4))
		late.Run()
		if err := alone.AllReduce(ctx, z, Sum); err != nil {
			t.Errorf("a group of one rank: %v", err)
		}
		holds("a group of one rank", z, 3)

		// What fails on one rank's device ends the calls of the others.
		why := errors.New("the device is lost")
		if sub.Rank() == 0 {
			sub.comms["lazy"].(*stream).failed = why
		}
		err = sub.AllReduce(ctx, x, Sum)
		var re *RankError
		if sub.Rank() == 0 && !errors.Is(err, why) || sub.Rank() == 1 && (!errors.As(err, &re) || re.Rank != 0 || !strings.Contains(err.Error(), why.Error())) {
			t.Errorf("rank %d of the pair: %v", sub.Rank(), err)
		}
		return g.Barrier(ctx)
	}, WithBackend("native,lazy:toy"))
	if err != nil {
		t.Error(err)
	}
	numOpened := 0
	for name, all := range opened {
		numOpened += len(all)
		for _, s := range all {
			if s.closed != 1 {
				t.Errorf("a communicator of group %q was closed %d times", name, s.closed)
			}
		}
	}
	if numOpened != 6 || unwatched != 6 || closed != 6 {
		t.Errorf("%d communicators for the device, want 6; %d watches have ended, %d parts are closed", numOpened, unwatched, closed)
	}
}

// TestPlainDeviceBackend: a communicator whose calls have ended when they return gets each
// kind of call by its own method.
func TestPlainDeviceBackend(t *testing.T) {
	addBackend(t, "plain", func(_ context.Context, s *backend.Spec) (*backend.Membership, error) {
		return &backend.Membership{Comm: plain{s.Host}}, nil
	})
	addBackend(t, "other", func(context.Context, *backend.Spec) (*backend.Membership, error) {
		return &backend.Membership{Comm: &stream{}}, nil
	})
	err := Spawn(t.Context(), 2, func(ctx context.Context, g *Group) error {
		late := lazy.New(1)
		defer late.Close()
		x := tensor.Full(float64(g.Rank()+1), 4).ToDevice(late)
		late.Run()
		var err error
		if g.Rank() == 0 {
			err = g.Send(ctx, x, 1)
		} else {
			err = g.Recv(ctx, x, 0)
		}
		if err != nil {
			return err
		}
		if err := g.AllReduce(ctx, x, Sum); err != nil {
			return err
		}
		late.Allow(func() {
			if got := x.ToDevice(tensor.CPU()).Float32s()[0]; got != 2 {
				t.Errorf("rank %d has %v, want 2", g.Rank(), got)
			}
		})
		// A group has its parent's backends, but for the kinds that its options name.
		for name, want := range map[string]string{"": "plain", "native": "plain", "lazy:other": "other"} {
			var opts []Option
			if name != "" {
				opts = append(opts, WithBackend(name))
			}
			sub, err := g.NewGroup(ctx, []int{g.Rank()}, opts...)
			if err != nil {
				return err
			}
			if _, other := sub.comms["lazy"].(*stream); other != (want == "other") || sub.backendFor("lazy") != want || sub.backendFor(hostKind) != "native" {
				t.Errorf("%q: the backends are %v, the communicator is a %T", name, sub.devices, sub.comms["lazy"])
			}
		}
		return nil
	}, WithBackend("lazy:plain"))
	if err != nil {
		t.Error(err)
	}
	if err := Spawn(t.Context(), 1, nil, WithBackend("gloo")); err == nil || !strings.Contains(err.Error(), `not "gloo"`) {
		t.Errorf("goroutines with a backend for PyTorch's jobs: %v", err)
	}
}

// TestClosedWhileDevicesOpen: what a group gets after it was closed is given back.
func TestClosedWhileDevicesOpen(t *testing.T) {
	var parent *Group
	var late *stream
	var ended []string
	addBackend(t, "toy", func(_ context.Context, s *backend.Spec) (*backend.Membership, error) {
		if s.Parent != nil {
			for _, c := range parent.offspring() {
				if err := c.Close(); err != nil {
					return nil, err
				}
			}
		}
		late = &stream{}
		return &backend.Membership{Comm: late, Unwatch: func() { ended = append(ended, "unwatch") },
			Close: func() error { ended = append(ended, "close"); return nil }}, nil
	})
	err := Spawn(t.Context(), 1, func(ctx context.Context, g *Group) error {
		parent = g
		if _, err := g.NewGroup(ctx, []int{0}); !errors.Is(err, ErrClosed) {
			t.Errorf("a group that was closed while it was formed: %v", err)
		}
		if late.closed != 1 || strings.Join(ended, " ") != "unwatch close" {
			t.Errorf("its communicator was closed %d times, and ended was %q", late.closed, ended)
		}
		return nil
	}, WithBackend("lazy:toy"))
	if err != nil {
		t.Error(err)
	}
}
