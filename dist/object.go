// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"
	"unsafe"

	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/dist/operation"
	"github.com/cohort-ml/cohort/internal/ctxerr"
	"github.com/cohort-ml/cohort/internal/mem"
)

// The operations on objects: values of any type that encoding/json writes and
// reads. What arrives is data, never code. Each is two collectives, of the
// sizes and of the texts. They are for what is small: names, settings, results.

// MaxObject is the most bytes that an object's JSON text may have.
const MaxObject = 16 << 20

// AllGatherObject returns the value of every rank, by rank.
func AllGatherObject[T any](ctx context.Context, g *Group, v T) ([]T, error) {
	const op = "all_gather_object"
	begun := time.Now()
	text, err := g.encode(op, v)
	if err != nil {
		return nil, err
	}
	sizes, err := g.gatherNumbers(ctx, begun, int64(len(text)))
	if err != nil {
		return nil, err
	}
	parts, total, err := g.objectSizes(op, sizes)
	if err != nil {
		return nil, err
	}
	all := make([]byte, total)
	if err := g.raw(ctx, begun, operation.AllGather, 0, rawBytes(text), rawBytes(all), parts); err != nil {
		return nil, err
	}
	return decodeAll[T](g, op, all, parts)
}

// GatherObject returns the value of every rank, by rank, on rank dst, and nil
// on the others.
func GatherObject[T any](ctx context.Context, g *Group, v T, dst int) ([]T, error) {
	const op = "gather_object"
	begun := time.Now()
	text, err := g.encode(op, v)
	if err != nil {
		return nil, err
	}
	var sizes []int64
	if g.rank == dst {
		sizes = make([]int64, g.size)
	}
	if err := g.raw(ctx, begun, operation.Gather, dst, numbers([]int64{int64(len(text))}), numbers(sizes), nil); err != nil {
		return nil, err
	}
	parts, total, err := g.objectSizes(op, sizes)
	if err != nil {
		return nil, err
	}
	all := make([]byte, total)
	if err := g.raw(ctx, begun, operation.Gather, dst, rawBytes(text), rawBytes(all), parts); err != nil || g.rank != dst {
		return nil, err
	}
	return decodeAll[T](g, op, all, parts)
}

// BroadcastObject returns rank src's value on every rank; what the others give
// does not matter.
func BroadcastObject[T any](ctx context.Context, g *Group, v T, src int) (T, error) {
	const op = "broadcast_object"
	begun := time.Now()
	var text []byte
	var none T
	if g.rank == src {
		var err error
		if text, err = g.encode(op, v); err != nil {
			return none, err
		}
	}
	size := []int64{int64(len(text))}
	if err := g.raw(ctx, begun, operation.Broadcast, src, numbers(size), collective.Data{}, nil); err != nil {
		return none, err
	}
	if _, _, err := g.objectSizes(op, size); err != nil {
		return none, err
	}
	if g.rank != src {
		text = make([]byte, size[0])
	}
	if err := g.raw(ctx, begun, operation.Broadcast, src, rawBytes(text), collective.Data{}, nil); err != nil {
		return none, err
	}
	return decode[T](g, op, text, src)
}

// ScatterObject returns on every rank r what rank src has as vs[r]; the others
// give nil.
func ScatterObject[T any](ctx context.Context, g *Group, vs []T, src int) (T, error) {
	const op = "scatter_object"
	begun := time.Now()
	var none T
	want, all := 0, []byte(nil)
	if g.rank == src {
		want = g.size
	}
	if len(vs) != want {
		return none, fmt.Errorf("dist: %s of group %q on rank %d: the number of values is %d, want %d: one for each rank on rank %d, none elsewhere",
			op, g.name, g.rank, len(vs), want, src)
	}
	parts := []int{} // which are the root's affair
	var sizes []int64
	for _, v := range vs {
		text, err := g.encode(op, v)
		if err != nil {
			return none, err
		}
		all, parts, sizes = append(all, text...), append(parts, len(text)), append(sizes, int64(len(text)))
	}
	size := make([]int64, 1)
	if err := g.raw(ctx, begun, operation.Scatter, src, numbers(sizes), numbers(size), nil); err != nil {
		return none, err
	}
	if _, _, err := g.objectSizes(op, size); err != nil {
		return none, err
	}
	text := make([]byte, size[0])
	if err := g.raw(ctx, begun, operation.Scatter, src, rawBytes(all), rawBytes(text), parts); err != nil {
		return none, err
	}
	return decode[T](g, op, text, src)
}

// SendObject sends a value to rank dst, which calls [RecvObject]. It is two
// messages, which stay together where several goroutines send objects to one rank,
// or receive them from one. Other messages between the two ranks in that direction
// must not be under way at the same time, nor receives from any rank: they could
// come between.
func SendObject[T any](ctx context.Context, g *Group, v T, dst int) error {
	begun := time.Now()
	text, err := g.encode("send_object", v)
	if err != nil {
		return err
	}
	release, err := g.oneObject(ctx, begun, "send_object", pair{dst, true})
	if err != nil {
		return err
	}
	defer release()
	if err := g.raw(ctx, begun, operation.Send, dst, numbers([]int64{int64(len(text))}), collective.Data{}, nil); err != nil {
		return err
	}
	return g.raw(ctx, begun, operation.Send, dst, rawBytes(text), collective.Data{}, nil)
}

// RecvObject returns the value that rank src sends by [SendObject], whose
// conditions hold here too.
func RecvObject[T any](ctx context.Context, g *Group, src int) (T, error) {
	const op = "recv_object"
	begun := time.Now()
	var none T
	release, err := g.oneObject(ctx, begun, op, pair{src, false})
	if err != nil {
		return none, err
	}
	defer release()
	size := make([]int64, 1)
	if err := g.raw(ctx, begun, operation.Recv, src, numbers(size), collective.Data{}, nil); err != nil {
		return none, err
	}
	if _, _, err := g.objectSizes(op, size); err != nil {
		return none, err
	}
	text := make([]byte, size[0])
	if err := g.raw(ctx, begun, operation.Recv, src, rawBytes(text), collective.Data{}, nil); err != nil {
		return none, err
	}
	return decode[T](g, op, text, src)
}

// oneObject waits until no other object is on its way between this rank and a
// peer in a direction, and keeps others from it until release is called.
func (g *Group) oneObject(ctx context.Context, begun time.Time, op string, way pair) (release func(), err error) {
	if g.checkRank("", way.peer) != nil {
		return func() {}, nil // the message will be refused
	}
	g.mu.Lock()
	busy := g.objects[way]
	if busy == nil {
		if g.objects == nil {
			g.objects = map[pair]chan struct{}{}
		}
		busy = make(chan struct{}, 1)
		g.objects[way] = busy
	}
	g.mu.Unlock()
	ctx, cancel := context.WithDeadlineCause(ctx, begun.Add(g.timeout), fmt.Errorf("the group's limit of %v: %w", g.timeout, context.DeadlineExceeded))
	defer cancel()
	select {
	case busy <- struct{}{}:
		return func() { <-busy }, nil
	case <-g.closing.Done():
		err = ErrClosed
	case <-ctx.Done():
		err = ctxerr.Of(ctx)
	}
	return nil, fmt.Errorf("dist: %s of group %q on rank %d was not begun, behind another with the same rank: %w", op, g.name, g.rank, err)
}

// encode returns an object's text.
func (g *Group) encode(op string, v any) ([]byte, error) {
	text, err := json.Marshal(v)
	if err == nil && len(text) > MaxObject {
		err = fmt.Errorf("the value has %d bytes as JSON, more than MaxObject (%d): send tensors, or a file's name", len(text), MaxObject)
	}
	if err != nil {
		return nil, fmt.Errorf("dist: %s of group %q on rank %d: %w", op, g.name, g.rank, err)
	}
	return text, nil
}

func decode[T any](g *Group, op string, text []byte, from int) (v T, err error) {
	if err := json.Unmarshal(text, &v); err != nil {
		return v, fmt.Errorf("dist: %s of group %q on rank %d: the value of rank %d: %w", op, g.name, g.rank, from, err)
	}
	return v, nil
}

func decodeAll[T any](g *Group, op string, all []byte, sizes []int) ([]T, error) {
	vs := make([]T, len(sizes))
	for r, n := range sizes {
		var err error
		if vs[r], err = decode[T](g, op, all[:n], r); err != nil {
			return nil, err
		}
		all = all[n:]
	}
	return vs, nil
}

// objectSizes checks sizes that other ranks have said. No rank of this program
// says a wrong one, so that it ends the group.
func (g *Group) objectSizes(op string, sizes []int64) (parts []int, total int, err error) {
	parts = make([]int, len(sizes))
	for i, n := range sizes {
		if n < 0 || n > MaxObject {
			err := fmt.Errorf("dist: %s of group %q on rank %d: an object of %d bytes was announced, want at most %d", op, g.name, g.rank, n, MaxObject)
			g.fail(err)
			return nil, 0, err
		}
		parts[i] = int(n)
		total += int(n)
	}
	return parts, total, nil
}

// gatherNumbers returns the numbers of all ranks, of which each gives as many.
func (g *Group) gatherNumbers(ctx context.Context, begun time.Time, mine ...int64) ([]int64, error) {
	all := make([]int64, len(mine)*g.size)
	return all, g.raw(ctx, begun, operation.AllGather, 0, numbers(mine), numbers(all), nil)
}

// raw runs an operation on memory that is no tensor's. peer is its root, or the
// other rank of a message; parts are those of an operation that has them, of a
// gather and a scatter on the root, and nil on all ranks where they are even.
func (g *Group) raw(ctx context.Context, begun time.Time, op operation.Op, peer int, in, out collective.Data, parts []int) error {
	if g.rules != nil {
		if err := g.rules.AdmitsObjects(op); err != nil {
			return err
		}
	}
	r := g.newRequest(ctx, op)
	r.in.data, r.out.data = in, out
	r.call.Begun = begun
	switch op {
	case operation.Send, operation.Recv:
		r.peer(peer)
	case operation.AllGather:
	default:
		r.rooted("the root", peer)
	}
	r.of(in.DType, in.NumElems)
	switch {
	case op == operation.Scatter:
		r.of(out.DType, out.NumElems)
		if r.call.Parts = parts; parts == nil {
			r.call.SetEven()
		}
	case op == operation.Gather && parts == nil:
		r.call.SetEven()
	case op == operation.Gather && g.rank == peer:
		r.call.Parts = parts
	case op == operation.AllGather && parts != nil && slices.Max(parts) != slices.Min(parts):
		r.call.SetParts(parts, g.rank)
	}
	return g.call(r)
}

// numbers lends integers to a call.
func numbers(v []int64) collective.Data {
	b := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), 8*len(v))
	return collective.Data{Buffer: mem.Buffer{Data: b}, DType: operation.Int64, NumElems: len(v)}
}

// rawBytes lends bytes to a call.
func rawBytes(b []byte) collective.Data {
	return collective.Data{Buffer: mem.Buffer{Data: b}, DType: operation.Uint8, NumElems: len(b)}
}
