// SPDX-License-Identifier: Apache-2.0

package native

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/dist/operation"
	"github.com/cohort-ml/cohort/internal/mem"
	"github.com/cohort-ml/cohort/internal/transport"
)

// TestReachStaysInsideTheSlab asks for memory outside what a peer has lent.
func TestReachStaysInsideTheSlab(t *testing.T) {
	slab, err := mem.NewSlab(8192)
	if err != nil {
		t.Fatal(err)
	}
	defer slab.Close()
	if slab.FD < 0 {
		t.Skip("this system has no memory that processes can share by descriptor")
	}
	fetched := 0
	s := newSlabSpace(func(_ context.Context, _ int, id uint64) (int, int, error) {
		fetched++
		if id != 1 {
			return 0, 0, errors.New("no such slab")
		}
		return dup(t, slab.FD), 8192, nil
	})
	defer s.close()
	c := &operation.Call{DType: operation.Float32}
	for _, tc := range []struct {
		at   location
		size int
		ok   bool
	}{
		{location{1, 0}, 8192, true},
		{location{1, 8188}, 4, true},
		{location{1, 8192}, 0, true},
		{location{1, 0}, 8193, false},
		{location{1, 8192}, 1, false},
		{location{1, 1 << 63}, 4, false},
		{location{1, ^uint64(0) - 3}, 8, false},
		{location{1, 2}, 4, false},
		{location{2, 0}, 4, false},
	} {
		data, err := s.reach(t.Context(), 0, c, tc.at, false, 0, tc.size)
		if (err == nil) != tc.ok || tc.ok && len(data) != tc.size {
			t.Errorf("%d bytes at %+v: %d bytes, %v", tc.size, tc.at, len(data), err)
		}
	}
	if fetched != 2 {
		t.Errorf("slabs were fetched %d times, want once each", fetched)
	}
}

// TestSlabOfALiar is told a size beyond the end of the file.
func TestSlabOfALiar(t *testing.T) {
	slab, err := mem.NewSlab(4096)
	if err != nil {
		t.Fatal(err)
	}
	defer slab.Close()
	if slab.FD < 0 {
		t.Skip("this system has no memory that processes can share by descriptor")
	}
	s := newSlabSpace(func(context.Context, int, uint64) (int, int, error) { return dup(t, slab.FD), 1 << 20, nil })
	defer s.close()
	if _, err := s.reach(t.Context(), 0, &operation.Call{DType: operation.Float32}, location{1, 0}, false, 0, 1<<20); err == nil {
		t.Error("memory beyond the end of a file was mapped")
	}
}

func TestOpenSegmentChecksItsLayout(t *testing.T) {
	data := aligned(segmentSize(2))
	if _, err := openSegment(data, 2); err == nil {
		t.Error("empty memory is taken for a segment")
	}
	newSegment(data, 2)
	if _, err := openSegment(data, 2); err != nil {
		t.Error(err)
	}
	if _, err := openSegment(data, 3); err == nil {
		t.Error("a segment of two ranks is taken for one of three")
	}
}

func TestFirstFaultStands(t *testing.T) {
	s := newLocalSegment(3)
	if _, _, _, ok := s.fault(); ok {
		t.Error("a new segment has a fault")
	}
	if !s.setFault(2, kindDied, "killed") || s.setFault(1, kindLeft, "") {
		t.Error("not the first fault was taken")
	}
	if rank, kind, text, ok := s.fault(); rank != 2 || kind != kindDied || text != "killed" || !ok {
		t.Errorf("fault %d %d %q %v", rank, kind, text, ok)
	}
}

// TestFlagWrapsAround waits across the counter's overflow.
func TestFlagWrapsAround(t *testing.T) {
	for _, p := range []parking{newGoParking(4), anyProcessParking()} {
		if p == nil {
			continue
		}
		var f flag
		f.value.Store(^uint32(0) - 1)
		const rounds = 200
		go func() {
			for i := range uint32(rounds) {
				raise(p, &f, ^uint32(0)+i)
				if i%20 == 0 {
					time.Sleep(100 * time.Microsecond) // lets the waiter fall asleep now and then
				}
			}
		}()
		for i := range uint32(rounds) {
			want := ^uint32(0) + i
			for !f.reached(want) {
				doze(t.Context(), p, &f, want, p.alarms(), time.Second)
			}
		}
	}
}

func anyProcessParking() parking {
	if !sharedMemory {
		return nil
	}
	return newProcessParking(1)
}

// TestFetchFromTheDead: a slab whose owner has died is not waited for once the
// group knows.
func TestFetchFromTheDead(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs an address that nobody listens at and that is no file")
	}
	s := &Shm{}
	s.whole, s.endWhole = context.WithCancel(context.Background())
	fabric := NewFabric(transport.NewToken(), transport.EncryptControl)
	fabric.SetBook([]Address{{}, {Unix: "unix:@cohort-test-nobody"}})
	p := &process{shm: s, fabric: fabric, cfg: Config{Group: "world", Members: make([]fault.Member, 2), World: []int{0, 1}}}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	time.AfterFunc(10*time.Millisecond, s.endWhole)
	if _, _, err := p.fetch(ctx, 1, 1); err == nil || ctx.Err() != nil {
		t.Errorf("fetch ended with %v, the deadline with %v", err, ctx.Err())
	}
}

// TestFailAfterClose: a rank may fail, or hear of a death, when it has given
// the memory of its group back.
func TestFailAfterClose(t *testing.T) {
	for _, r := range shmPlanners(t, 2) {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		r.Communicator.(*Shm).Died(1)
		r.Fail(errors.New("too late"))
	}
}

// TestRankThatDiesWritingAFault: a fault that is never finished keeps nobody from
// hearing of the death of the rank that began it.
func TestRankThatDiesWritingAFault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ranks := NewGoRanks(Config{Group: "test", Members: members(2), Timeout: time.Minute}, GoRanksOptions{})
		ranks[0].seg.header().fault.state.Store(faultWriting)
		start := time.Now()
		ranks[0].Died(1)
		if rank, kind, _, ok := ranks[0].seg.fault(); !ok || rank != 1 || kind != kindDied {
			t.Errorf("the fault is rank %d, kind %d, %v; want the death of rank 1", rank, kind, ok)
		}
		if took := time.Since(start); took > 2*nap {
			t.Errorf("it was told after %v", took)
		}
	})
}

// TestFetchEndsWithTheCall: a peer that does not hand over its slab keeps a call no
// longer than the call's context.
func TestFetchEndsWithTheCall(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s := newSlabSpace(func(ctx context.Context, _ int, _ uint64) (int, int, error) {
		cancel()
		select {
		case <-ctx.Done():
			return 0, 0, ctx.Err()
		case <-time.After(fetchTimeout / 2):
			return 0, 0, errors.New("the fetch did not end with the call")
		}
	})
	if _, err := s.reach(ctx, 0, &operation.Call{DType: operation.Float32}, location{1, 0}, false, 0, 4); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
