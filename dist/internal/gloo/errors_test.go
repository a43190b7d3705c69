// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/dist/operation"
	"github.com/cohort-ml/cohort/dist/store"
)

// bare returns rank 0 of a group of size whose peers are the other ends of pipes.
func bare(size int) (*Communicator, []net.Conn) {
	cfg := config(nil, PerDevice, 0, size)
	cfg.Addrs = make([]netip.Addr, 1)
	b := newCommunicator(cfg)
	ends := make([]net.Conn, size)
	for r := range size {
		b.members[r].Host = fmt.Sprint("host", r)
	}
	for r := 1; r < size; r++ {
		here, there := net.Pipe()
		b.contexts[0].pairs[r].attach(here)
		ends[r] = there
	}
	return b, ends
}

func message1(k kind, s slot, length uint64, data ...byte) []byte {
	b := make([]byte, preambleBytes, preambleBytes+len(data))
	preamble{k, s, length}.put(b)
	return append(b, data...)
}

// drain reads what comes to a peer until its connection ends, and returns it.
func drain(conn net.Conn) func() []byte {
	var got []byte
	var done sync.WaitGroup
	done.Go(func() { got, _ = io.ReadAll(conn) })
	return func() []byte { done.Wait(); return got }
}

// TestBadInput has a peer send what cannot be, while this rank is in an all-reduce of
// four floats with tag 0: the error names the peer and what it sent, the connection is
// closed, and nothing has been sent that the peer had no room for.
func TestBadInput(t *testing.T) {
	reducing := slotOf(ofAllReduce, 0)
	for name, test := range map[string]struct {
		sent []byte
		says []string
	}{
		"an unknown opcode":          {message1(77, reducing, 4), []string{"opcode 77", "all_reduce with tag 0"}},
		"a bound buffer":             {message1(opSendBuffer, reducing, 4), []string{"SEND_BUFFER"}},
		"a length beyond all":        {message1(opData, reducing, 1<<60), []string{"1152921504606846976 bytes"}},
		"lengths that differ":        {append(make([]byte, 8), message1(opSendReady, reducing, 4)[8:]...), []string{"NOTIFY_SEND_READY of 0 bytes", "want 48"}},
		"another collective":         {message1(opRecvReady, slotOf(ofBroadcast, 0), 8), []string{"broadcast with tag 0", "tag 0 is all_reduce"}},
		"a collective of no kind":    {message1(opRecvReady, slotOf(40, 0), 8), []string{"collective kind 40 with tag 0", "is all_reduce"}},
		"room for less":              {message1(opRecvReady, reducing, 3), []string{"NOTIFY_RECV_READY of 3 bytes", "this rank has 4 bytes"}},
		"room for more":              {message1(opRecvReady, reducing, 5), []string{"NOTIFY_RECV_READY of 5 bytes", "this rank has 4 bytes"}},
		"more than there is room":    {message1(opData, reducing, 5, 1, 2, 3, 4, 5), []string{"SEND_UNBOUND_BUFFER of 5 bytes", "expects 4 bytes"}},
		"less than is expected":      {message1(opData, reducing, 3, 1, 2, 3), []string{"SEND_UNBOUND_BUFFER of 3 bytes", "expects 4 bytes"}},
		"what nobody has granted":    {message1(opData, slotOf(ofAllReduce, 9), 3, 1, 2, 3), []string{"tag 9", "has not granted it"}},
		"an end within a preamble":   {message1(opData, reducing, 4)[:20], []string{"closed its connection"}},
		"an end within the data":     {message1(opData, reducing, 4, 1), []string{"closed its connection"}},
		"nothing but its end":        {nil, []string{"closed its connection"}},
		"grants without end":         {slices.Repeat(message1(opRecvReady, 5, 1), maxAnnounced+1), []string{"wait already"}},
		"announcements without end":  {slices.Repeat(message1(opSendReady, 5, 1), maxAnnounced+1), []string{"wait already"}},
		"a tag far ahead, and again": {manyEarly(), []string{"beyond"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, ends := bare(2)
				defer b.Close()
				got := drain(ends[1])
				data := floats(4, func(int) float32 { return 1 })
				sent := make(chan struct{})
				go func() {
					defer close(sent)
					synctest.Wait() // until the call waits
					_, _ = ends[1].Write(test.sent)
					if len(test.says) > 0 && test.says[0] == "closed its connection" {
						ends[1].Close()
					}
				}()
				c := operation.Call{Op: operation.AllReduce, DType: operation.Float32, Count: 4, Seq: 1}
				err := b.Collective(context.Background(), c, dataOf(data, operation.Float32), dataOf(data, operation.Float32))
				var rank *fault.RankError
				if !errors.As(err, &rank) || rank.Rank != 1 || rank.Op != "all_reduce" || rank.Group != "world" {
					t.Fatalf("%v is no error of the call about rank 1", err)
				}
				var wire *fault.WireError
				if gone := errors.Is(err, fault.ErrGone); gone == errors.As(err, &wire) {
					t.Errorf("%v: neither that the peer has gone nor what it sent", err)
				}
				for _, s := range test.says {
					if !strings.Contains(err.Error(), s) {
						t.Errorf("%v does not say %q", err, s)
					}
				}
				<-sent
				ends[1].Close()
				for rest := got(); len(rest) >= preambleBytes; rest = rest[preambleBytes:] {
					m, err := parsePreamble(rest)
					if err != nil || m.kind == opData {
						t.Errorf("this rank sent %v (%v)", m, err)
					}
				}
				// Later calls fail at once, for the same reason.
				c.Seq = 2
				again := b.Collective(context.Background(), c, dataOf(data, operation.Float32), dataOf(data, operation.Float32))
				if !errors.As(again, &rank) || rank.Rank != 1 || rank.Seq != 2 {
					t.Errorf("the next call: %v", again)
				}
			})
		})
	}
}

// manyEarly is notices of more collectives than a rank may be ahead.
func manyEarly() []byte {
	var b []byte
	for i := range maxEarly + 1 {
		b = append(b, message1(opSendReady, slotOf(ofAllReduce, uint32(i+5)), 4)...)
	}
	return b
}

// TestEarlyMismatch: what a peer has sent before this rank comes to the same tag is
// compared too.
func TestEarlyMismatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, ends := bare(3)
		defer b.Close()
		drain(ends[1])
		got := drain(ends[2])
		if _, err := ends[2].Write(message1(opRecvReady, slotOf(ofGather, 0), 4)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		err := b.Collective(context.Background(), operation.Call{Op: operation.Barrier, Seq: 1}, collective.Data{}, collective.Data{})
		var rank *fault.RankError
		if !errors.As(err, &rank) || rank.Rank != 2 || !strings.Contains(err.Error(), "gather with tag 0") {
			t.Errorf("%v", err)
		}
		if b := got(); len(b) > 0 {
			t.Errorf("%d bytes have been sent all the same", len(b))
		}
	})
}

// TestTimeouts: a call whose peers do nothing ends with the group's limit or with its
// context, and names whom it waited for.
func TestTimeouts(t *testing.T) {
	data := dataOf(make([]byte, 16), operation.Float32)
	calls := map[string]struct {
		do      func(ctx context.Context, b *Communicator) error
		missing []int
	}{
		"all_reduce": {func(ctx context.Context, b *Communicator) error {
			return b.Collective(ctx, operation.Call{Op: operation.AllReduce, DType: operation.Float32, Count: 4}, data, data)
		}, []int{1, 3}},
		"gather": {func(ctx context.Context, b *Communicator) error {
			out := dataOf(make([]byte, 64), operation.Float32)
			return b.Collective(ctx, operation.Call{Op: operation.Gather, DType: operation.Float32, Count: 4}, data, out)
		}, []int{1, 2, 3}},
		"send": {func(ctx context.Context, b *Communicator) error {
			return b.Send(ctx, operation.Call{Op: operation.Send, Root: 2, DType: operation.Float32, Count: 4}, data)
		}, []int{2}},
		"recv": {func(ctx context.Context, b *Communicator) error {
			return b.Recv(ctx, operation.Call{Op: operation.Recv, Root: 3, DType: operation.Float32, Count: 4}, data)
		}, []int{3}},
		"recv from any": {func(ctx context.Context, b *Communicator) error {
			_, err := b.AwaitAny(ctx, operation.Call{Op: operation.Recv, Root: operation.AnyRank})
			return err
		}, []int{1, 2, 3}},
		"monitored barrier": {func(ctx context.Context, b *Communicator) error {
			return b.MonitoredBarrier(ctx, operation.Call{Op: operation.Barrier}, false)
		}, []int{1}},
		"monitored barrier of all": {func(ctx context.Context, b *Communicator) error {
			return b.MonitoredBarrier(ctx, operation.Call{Op: operation.Barrier}, true)
		}, []int{1, 2, 3}},
	}
	for name, call := range calls {
		for _, limit := range []time.Duration{0, 3 * time.Second} { // of the context; 0 for none
			synctest.Test(t, func(t *testing.T) {
				b, ends := bare(4)
				defer b.Close()
				for _, e := range ends[1:] {
					drain(e)
				}
				ctx, want := context.Background(), b.cfg.Timeout
				if limit > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, limit)
					defer cancel()
					want = limit
				}
				begun := time.Now()
				err := call.do(ctx, b)
				if took := time.Since(begun); took != want {
					t.Errorf("%s ended after %v, want %v", name, took, want)
				}
				var late *fault.TimeoutError
				if !errors.As(err, &late) || !errors.Is(err, context.DeadlineExceeded) {
					t.Fatalf("%s: %v", name, err)
				}
				var missing []int
				for _, m := range late.Missing {
					missing = append(missing, m.Rank)
				}
				if !slices.Equal(missing, call.missing) {
					t.Errorf("%s: %v: missing %v, want %v", name, err, missing, call.missing)
				}
				if who := fmt.Sprintf("rank %d (host host%[1]d)", missing[0]); !strings.Contains(err.Error(), who) {
					t.Errorf("%s: %v, want the host of %s", name, err, who)
				}
			})
		}
	}
}

// TestFirstLossIsAtFault: when one rank's end takes others with it, the first is named.
func TestFirstLossIsAtFault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, ends := bare(4)
		defer b.Close()
		for _, e := range ends[1:] {
			drain(e)
		}
		go func() {
			time.Sleep(time.Second)
			ends[2].Close() // no neighbour of rank 0 in the ring
			time.Sleep(time.Millisecond)
			ends[1].Close()
		}()
		data := dataOf(make([]byte, 16), operation.Float32)
		err := b.Collective(context.Background(), operation.Call{Op: operation.AllReduce, DType: operation.Float32, Count: 4}, data, data)
		var rank *fault.RankError
		if !errors.As(err, &rank) || rank.Rank != 2 || !errors.Is(err, fault.ErrGone) {
			t.Errorf("%v", err)
		}
		if !b.HasLeft(2) || b.HasLeft(3) {
			t.Errorf("rank 2 has left: %v, rank 3: %v", b.HasLeft(2), b.HasLeft(3))
		}
	})
}

// TestDied: what the launcher says of a rank ends a call.
func TestDied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, ends := bare(3)
		defer b.Close()
		for _, e := range ends[1:] {
			drain(e)
		}
		time.AfterFunc(time.Second, func() { b.Died(2) })
		err := b.Collective(context.Background(), operation.Call{Op: operation.Barrier, Seq: 4}, collective.Data{}, collective.Data{})
		var rank *fault.RankError
		if !errors.As(err, &rank) || rank.Rank != 2 || rank.Seq != 4 || !errors.Is(err, fault.ErrDied) {
			t.Errorf("%v", err)
		}
		if err := b.Trouble(operation.Call{Op: operation.Barrier}); !errors.Is(err, fault.ErrDied) {
			t.Errorf("trouble: %v", err)
		}
	})
}

// TestMeetings that cannot come about end with an error that says why.
func TestMeetings(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	other := address{netip.MustParseAddrPort("127.0.0.1:9"), noSequence}
	for name, test := range map[string]struct {
		g         Generation
		published []byte
		says      string
	}{
		"another world size":          {PerDevice, (&rankInfo{"h", other, make([]int64, 3)}).encode(), ": the world sizes differ: it has published how 3 ranks meet, and this rank's group has 2"},
		"another world size, by pair": {PerPair, other.append(other.append(nil)), ": the world sizes differ: it has published how 3 ranks meet, and this rank's group has 2"},
		"by pair":                     {PerDevice, other.append(nil), "PyTorch up to 2.0"},
		"by device":                   {PerPair, (&rankInfo{"h", other, make([]int64, 2)}).encode(), "PyTorch from 2.1 on"},
		"nothing":                     {PerDevice, []byte{}, "ends before"},
		"another family":              {PerDevice, (&rankInfo{"h", address{netip.MustParseAddrPort("[::1]:9"), 0}, make([]int64, 2)}).encode(), "one family"},
	} {
		s := store.NewMemory()
		if err := s.Set(ctx, "0/1", test.published); err != nil {
			t.Fatal(err)
		}
		_, err := Open(ctx, config(s, test.g, 0, 2))
		var rank *fault.RankError
		leads := !strings.Contains(test.says, "sizes") || !strings.Contains(fmt.Sprint(err), "what it has published")
		if !errors.As(err, &rank) || rank.Rank != 1 || !strings.Contains(err.Error(), test.says) || !leads {
			t.Errorf("%s: %v does not say %q of rank 1", name, err, test.says)
		}
	}
	// Nobody there: all that are missing are named.
	for _, g := range []Generation{PerPair, PerDevice} {
		cfg := config(store.NewMemory(), g, 1, 4)
		cfg.Timeout = 50 * time.Millisecond
		_, err := Open(ctx, cfg)
		var late *fault.TimeoutError
		if !errors.As(err, &late) || len(late.Missing) != 3 {
			t.Errorf("%v", err)
		}
	}
}

// TestBothNameADifference: a rank that sees that a call differs has told its peer enough
// for that to say so too, also where the peer's part was there before it called.
func TestBothNameADifference(t *testing.T) {
	together(t, PerDevice, 2, nil, func(b *Communicator) error {
		count := 4 + b.cfg.Rank
		if p := b.pairFor(1, 0); b.cfg.Rank == 0 {
			for granted := false; !granted; time.Sleep(time.Millisecond) {
				p.mu.Lock()
				granted = p.granted > 0
				p.mu.Unlock()
			}
		}
		data := dataOf(make([]byte, 4*count), operation.Float32)
		err := b.Collective(context.Background(), operation.Call{Op: operation.AllReduce, DType: operation.Float32, Count: count, Seq: 1}, data, data)
		var wire *fault.WireError
		if !errors.As(err, &wire) {
			return fmt.Errorf("%v is not about what the peer has sent", err)
		}
		return nil
	})
}
