// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/internal/loaded"
)

type refBox struct{ Ref *RRef[int] }

// TestReferencesInAnswersThatWait: what an answer refers to stays, however late its
// future is asked, and goes when the future is forgotten.
func TestReferencesInAnswersThatWait(t *testing.T) {
	give := NewMethod[int, refBox]("test.give")
	lease := loaded.Allow(300 * time.Millisecond)
	a := agents(t, "pipe", 2, WithLease(lease), Serve(give, func(ctx context.Context, n int) (refBox, error) {
		return refBox{NewRRef(AgentOf(ctx), n)}, nil
	}))
	f := give.Async(t.Context(), a[0].Peer("w1"), 7)
	forgotten := give.Async(t.Context(), a[0].Peer("w1"), 8)
	for began := time.Now(); time.Since(began) < 3*lease; time.Sleep(50 * time.Millisecond) {
		runtime.GC() // the handler's own reference
	}
	box, err := f.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if v, err := box.Ref.ToHere(t.Context()); v != 7 || err != nil {
		t.Errorf("got %v, %v, want 7", v, err)
	}
	<-forgotten.Done()
	forgotten = nil
	box.Ref.Release()
	f = nil
	for by := time.Now().Add(30 * time.Second); a[1].References().Values > 0; time.Sleep(10 * time.Millisecond) {
		if runtime.GC(); time.Now().After(by) {
			t.Fatalf("w1 has %+v", a[1].References())
		}
	}
}

// TestReferencesOnAStream that is read late.
func TestReferencesOnAStream(t *testing.T) {
	give := NewStream[int, refBox]("test.gives")
	lease := loaded.Allow(300 * time.Millisecond)
	a := agents(t, "pipe", 2, WithLease(lease), ServeStream(give, func(ctx context.Context, s *Stream[refBox, int]) error {
		if err := s.Send(ctx, refBox{NewRRef(AgentOf(ctx), 7)}); err != nil {
			return err
		}
		_, err := s.Recv(ctx)
		return err
	}))
	s, err := give.Open(t.Context(), a[0].Peer("w1"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for began := time.Now(); time.Since(began) < 3*lease; time.Sleep(50 * time.Millisecond) {
		runtime.GC()
	}
	box, err := s.Recv(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if v, err := box.Ref.ToHere(t.Context()); v != 7 || err != nil {
		t.Errorf("got %v, %v, want 7", v, err)
	}
	box.Ref.Release()
}
