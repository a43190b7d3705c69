// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-ml/cohort/rpc/internal/agenttest"
	"github.com/cohort-ml/cohort/tensor"
)

type chunk struct {
	Index int
	Data  *tensor.Tensor
}

var (
	sums   = NewStream[chunk, float64]("test.sums")
	count  = NewStream[int, chunk]("test.count")
	silent = NewStream[int, int]("test.silent")
)

func serveStreams() Option {
	return WithOptions(
		ServeStream(sums, func(ctx context.Context, s *Stream[float64, chunk]) error {
			sum := 0.0
			for c, err := range s.All(ctx) {
				if err != nil {
					return err
				}
				sum += c.Data.Sum().Item()
				if err := s.Send(ctx, sum); err != nil {
					return err
				}
			}
			return nil
		}),
		ServeStream(count, func(ctx context.Context, s *Stream[chunk, int]) error {
			n, err := s.Recv(ctx)
			if err != nil {
				return err
			}
			if n < 0 {
				return errSentinel
			}
			for i := range n {
				if err := s.Send(ctx, chunk{i, tensor.Full(float64(i), 1000)}); err != nil {
					return err
				}
			}
			return nil
		}),
		ServeStream(silent, func(ctx context.Context, s *Stream[int, int]) error {
			<-ctx.Done()
			return ctx.Err()
		}))
}

func TestStream(t *testing.T) {
	agenttest.Over(t, func(t *testing.T, kind string) {
		a := agents(t, kind, 2, serveStreams(), WithError("test.sentinel", errSentinel))
		ctx := t.Context()
		for _, p := range []*Peer{a[0].Peer("w1"), a[0].Self()} {
			s, err := sums.Open(ctx, p)
			if err != nil {
				t.Fatal(err)
			}
			want := 0.0
			for i := range 20 {
				// Small ones and large ones keep their order.
				n := 1 + i%3*5000
				if err := s.Send(ctx, chunk{i, tensor.Full(1, n)}); err != nil {
					t.Fatal(err)
				}
				if i%2 == 0 {
					continue
				}
				for _, k := range []int{1 + (i-1)%3*5000, n} {
					want += float64(k)
					if got, err := s.Recv(ctx); err != nil || got != want {
						t.Fatalf("message %d: %v, %v, want %v", i, got, err, want)
					}
				}
			}
			s.CloseSend()
			if v, err := s.Recv(ctx); err != io.EOF {
				t.Errorf("after the end: %v, %v", v, err)
			}
			if err := s.Send(ctx, chunk{}); err == nil {
				t.Error("something was sent after the end")
			}
			s.Close()

			// 4 MB with a window of one: the sender waits for the receiver.
			down, err := count.Open(ctx, p)
			if err != nil {
				t.Fatal(err)
			}
			if err := down.Send(ctx, 1000); err != nil {
				t.Fatal(err)
			}
			i := 0
			for c, err := range down.All(ctx) {
				if err != nil {
					t.Fatal(err)
				}
				if c.Index != i || c.Data.Float32s()[999] != float32(i) {
					t.Fatalf("message %d is %d", i, c.Index)
				}
				i++
			}
			if i != 1000 {
				t.Errorf("%d messages, want 1000", i)
			}
			failing, err := count.Open(ctx, p)
			if err != nil {
				t.Fatal(err)
			}
			if err := failing.Send(ctx, -1); err != nil {
				t.Fatal(err)
			}
			if _, err := failing.Recv(ctx); !errors.Is(err, errSentinel) {
				t.Errorf("the handler's error is %v", err)
			}
			left, err := count.Open(ctx, p)
			if err != nil {
				t.Fatal(err)
			}
			if err := left.Send(ctx, 1000); err != nil {
				t.Fatal(err)
			}
			left.Close()
			for range left.All(ctx) {
			}
			if _, err := left.Recv(ctx); KindOf(err) != KindCanceled {
				t.Errorf("a stream that was closed: %v", err)
			}
		}
	})
}

func TestStreamTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := agents(t, "pipe", 2, serveStreams(), WithTimeout(3*time.Second))
		began := time.Now()
		s, err := silent.Open(t.Context(), a[0].Peer("w1"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Recv(t.Context()); KindOf(err) != KindTimeout || time.Since(began) != 3*time.Second {
			t.Errorf("a stream on which nothing comes: %v after %v", err, time.Since(began))
		}
		s.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began = time.Now()
		s, err = silent.Open(ctx, a[0].Peer("w1"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Recv(t.Context()); KindOf(err) != KindTimeout || time.Since(began) != time.Second {
			t.Errorf("a stream whose time is over: %v after %v", err, time.Since(began))
		}
	})
}
