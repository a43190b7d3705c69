// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/tensor"
)

// TestBadArguments gives every operation what it must refuse: each is an error
// that names the argument, on this rank alone and before anything is sent, so
// that the group works on.
func TestBadArguments(t *testing.T) {
	onEveryTransport(t, []int{2}, func(ctx context.Context, g *Group) error {
		me, other := g.Rank(), 1-g.Rank()
		x, y := private(tensor.Float32, 4), private(tensor.Float32, 8)
		ints := private(tensor.Int64, 8)
		nowhere := tensor.New(tensor.Meta, tensor.Float32, 4)
		expanded := tensor.Zeros(1).Expand(4)
		two := func(a, b *tensor.Tensor) []*tensor.Tensor { return []*tensor.Tensor{a, b} }
		for _, tc := range []struct {
			want string
			err  error
		}{
			// ranks
			{"broadcast of group \"world\" on rank " + fmt.Sprint(me) + ": the source is rank 2 of a group of 2", g.Broadcast(ctx, x, 2)},
			{"the source is rank -1", g.BroadcastCoalesced(ctx, two(x, y), -1)},
			{"the destination is rank 7", g.Send(ctx, x, 7)},
			{"the source is rank -1", g.Recv(ctx, x, -1)},
			{fmt.Sprintf("rank %d itself", me), g.RecvAsync(ctx, x, me).Wait(ctx)},
			{"the destination is rank 2", g.Reduce(ctx, x, 2, Sum)},
			{"the destination is rank 2", g.Gather(ctx, nil, x, 2)},
			{"the source is rank 2", g.Scatter(ctx, x, nil, 2)},
			{"message 1 of the batch: dist: recv of group \"world\" on rank " + fmt.Sprint(me) + ": the source is rank 9",
				g.Batch(ctx, Message{Tensor: x, Peer: other}, Message{Recv: true, Tensor: y, Peer: 9})},
			// tensors
			{"the tensor is nil", g.AllReduce(ctx, nil, Sum)},
			{"source 1 is nil", g.ReduceScatterList(ctx, x, two(y, nil), Sum)},
			{"the tensor is on device meta", g.Broadcast(ctx, nowhere, 0)},
			{"destination 0 is on device meta", g.AllGatherList(ctx, two(nowhere, x), x)},
			{"the tensor of shape [4] is not dense", g.AllReduce(ctx, expanded, Sum)},
			{"the destination of shape [4] is not dense", g.AllGather(ctx, expanded, private(tensor.Float32, 2))},
			{"destination 1 of shape [4] is not dense", g.AllToAll(ctx, two(x, expanded), two(x, x))},
			{"destinations 0 and 1 are the same memory", g.AllGatherList(ctx, two(x, x), private(tensor.Float32, 4))},
			// types
			{"the destination has elements of type int64, the source of float32", g.AllGather(ctx, ints, x)},
			{"tensor 1 has elements of type int64, tensor 0 of float32", g.AllReduceCoalesced(ctx, two(x, ints), Sum)},
			{"the destination has elements of type float32, the source of int64", g.AllToAllSingle(ctx, y, ints, nil, nil)},
			{"no reduction band for elements of type float32", g.AllReduce(ctx, x, BAnd)},
			{"no reduction reduction(9)", g.AllReduceAsync(ctx, x, 9).Wait(ctx)},
			// sizes
			{"the destination has 4 elements, want 8", g.AllGather(ctx, x, x)},
			{"the source has 4 elements, want 8", g.ReduceScatter(ctx, x, private(tensor.Float32, 4), Sum)},
			{"the destination has 8 elements, the source 4", g.AllToAllSingle(ctx, y, x, nil, nil)},
			{"3 indices in its first dim, which 2 ranks cannot share", g.AllToAllSingle(ctx, tensor.Zeros(3), tensor.Zeros(3), nil, nil)},
			{"sendCounts has 1 counts", g.AllToAllSingle(ctx, y, x, []int{4, 4}, []int{4})},
			{"recvCounts[1] is -1", g.AllToAllSingle(ctx, y, x, []int{8, -1}, []int{2, 2})},
			{"the sum of recvCounts is 6", g.AllToAllSingle(ctx, y, x, []int{3, 3}, []int{2, 2})},
			{"sends 2 elements to itself and takes 4", g.AllToAllSingle(ctx, y, x, []int{4, 4}, []int{2, 2})},
			{"has no dim to cut", g.AllToAllSingle(ctx, tensor.Zeros(1).Select(0, 0), tensor.Zeros(1).Select(0, 0), nil, nil)},
			// lists
			{"the number of destinations is 1, want one for each of 2 ranks", g.AllGatherList(ctx, []*tensor.Tensor{x}, x)},
			{"the number of sources is 3", g.AllToAll(ctx, two(x, y), []*tensor.Tensor{x, x, x})},
			{"there are no tensors", g.AllReduceCoalesced(ctx, nil, Sum)},
			{"there are 2 destinations on a rank other than rank " + fmt.Sprint(other), g.Gather(ctx, two(x, y), x, other)},
			{"there are 2 sources on a rank other than rank " + fmt.Sprint(other), g.Scatter(ctx, x, two(x, y), other)},
			{"the source has 2 elements; destination " + fmt.Sprint(me) + ", of this rank, has", g.AllGatherList(ctx, two(x, y), private(tensor.Float32, 2))},
			{"the number of destinations is 2, that of sources 1", g.AllGatherCoalesced(ctx, two(x, y), []*tensor.Tensor{x})},
			{"destination 1 has 4 elements, want 8", g.AllGatherCoalesced(ctx, two(y, x), two(private(tensor.Float32, 4), private(tensor.Float32, 4)))},
			// objects
			{"unsupported type", second(AllGatherObject(ctx, g, func() {}))},
			{"the number of values is 1, want 2", second(ScatterObject(ctx, g, []int{1}, me))},
			{"the number of values is 1, want 0", second(ScatterObject(ctx, g, []int{1}, other))},
			{"the destination is rank 5", SendObject(ctx, g, 1, 5)},
		} {
			if tc.err == nil || !strings.Contains(tc.err.Error(), tc.want) {
				return fmt.Errorf("got %v, want an error with %q", tc.err, tc.want)
			}
		}
		ended, cancel := context.WithCancel(ctx)
		cancel()
		if err := g.Barrier(ended); !errors.Is(err, context.Canceled) {
			return fmt.Errorf("a call with an ended context: %v", err)
		}
		return someOfEverything(ctx, g) // the group is as it was
	})
}

func second[T any](_ T, err error) error { return err }

// TestFreedTensor refuses a value that its tape has freed.
func TestFreedTensor(t *testing.T) {
	g := alone(t)
	tape := tensor.NewTape(true)
	x := tape.Const(tensor.Zeros(3)).Exp()
	tape.Close()
	if err := g.AllReduce(t.Context(), x, Sum); err == nil || !strings.Contains(err.Error(), "the tensor has been freed") {
		t.Errorf("got %v, want an error that says so", err)
	}
}

// TestLargeObject refuses an object that is too large.
func TestLargeObject(t *testing.T) {
	g := alone(t)
	_, err := AllGatherObject(t.Context(), g, strings.Repeat("x", MaxObject))
	if err == nil || !strings.Contains(err.Error(), "more than MaxObject") {
		t.Errorf("got %v, want an error that says so", err)
	}
}

// TestRefusedCallsWriteNothing looks at whether a value that was saved for
// backward may still be used: a call marks what it will write, but not one
// that is refused.
func TestRefusedCallsWriteNothing(t *testing.T) {
	g := alone(t)
	for _, tc := range []struct {
		name  string
		call  func(x *tensor.Tensor) error
		fails bool
	}{
		{"refused", func(x *tensor.Tensor) error {
			if err := g.AllReduce(t.Context(), x, BAnd); err == nil {
				return errors.New("a reduction of bits of floats")
			}
			return nil
		}, false},
		{"read", func(x *tensor.Tensor) error { return g.AllGather(t.Context(), tensor.Zeros(3), x) }, false},
		{"source", func(x *tensor.Tensor) error { return g.Broadcast(t.Context(), x, 0) }, false},
		{"written", func(x *tensor.Tensor) error { return g.AllReduce(t.Context(), x, Sum) }, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tape := tensor.NewTape(true)
			defer tape.Close()
			w := tape.Leaf(tensor.FromFloat32([]float32{1, 2, 3}))
			x := w.Exp() // its gradient needs its value
			if err := tc.call(x); err != nil {
				t.Fatal(err)
			}
			defer func() {
				if v := recover(); (v != nil) != tc.fails {
					t.Errorf("backward panicked with %v", v)
				}
			}()
			if _, err := x.Sum().Grad(t.Context(), nil, []*tensor.Tensor{w}); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// alone returns a group of one rank.
func alone(t testing.TB) *Group {
	t.Helper()
	for _, v := range []string{"RANK", "WORLD_SIZE"} {
		t.Setenv(v, "")
	}
	g, err := Init(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.Close() })
	return g
}
