// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/rpc/internal/agenttest"
	"github.com/cohort-ml/cohort/rpc/internal/link"
	"github.com/cohort-ml/cohort/tensor"
)

// TestTensorsAfterTheCall: when a call has ended, however, its tensors are the
// caller's to change and to free: no handler sees what was put there afterwards.
func TestTensorsAfterTheCall(t *testing.T) {
	stop := NewMethod[struct{}, struct{}]("test.stop")
	push := NewMethod[*tensor.Tensor, struct{}]("test.push")
	const n = 8 << 20
	for _, how := range []string{"call", "async", "stream"} {
		t.Run(how, func(t *testing.T) {
			agenttest.Over(t, func(t *testing.T, kind string) {
				goOn, seen := make(chan struct{}), make(chan string, 16)
				saw := func(x *tensor.Tensor) {
					what := "good"
					for i, v := range x.Float32s() {
						if v != 1 {
							what = fmt.Sprintf("element %d is %v, it was 1 until the call had ended", i, v)
							break
						}
					}
					seen <- what
				}
				stream := NewStream[*tensor.Tensor, struct{}]("test.pushes")
				a := agents(t, kind, 2, serveBasics(),
					Serve(stop, func(context.Context, struct{}) (struct{}, error) { <-goOn; return struct{}{}, nil }, WithQuick()),
					Serve(push, func(_ context.Context, x *tensor.Tensor) (struct{}, error) { saw(x); return struct{}{}, nil }),
					ServeStream(stream, func(ctx context.Context, s *Stream[struct{}, *tensor.Tensor]) error {
						for x, err := range s.All(ctx) {
							if err != nil {
								return err
							}
							saw(x)
						}
						return nil
					}))
				w1 := a[0].Peer("w1")
				s, err := stream.Open(t.Context(), w1)
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				stopped := stop.Async(t.Context(), w1, struct{}{}) // its connection is not read
				ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
				defer cancel()
				// The first is being written when its time is over, the second waits for its turn.
				x, y := tensor.Full(1, n), tensor.Full(1, n)
				began := time.Now()
				first := make(chan error, 1)
				go func() {
					defer x.Fill(2)
					switch how {
					case "stream":
						first <- s.Send(ctx, x)
					case "async":
						_, err := push.Async(ctx, w1, x).Wait(context.Background())
						first <- err
					default:
						_, err := push.Call(ctx, w1, x)
						first <- err
					}
				}()
				time.Sleep(10 * time.Millisecond)
				if _, err := push.Async(ctx, w1, y).Wait(context.Background()); err == nil {
					t.Error("a call that nobody read has ended well")
				}
				y.Free()
				time.AfterFunc(100*time.Millisecond, func() { close(goOn) })
				if err := <-first; err == nil && how != "stream" {
					t.Error("what nobody read has ended well")
				}
				if took := time.Since(began); took > link.StallTime+10*time.Second {
					t.Errorf("it took %v", took)
				}
				_, _ = stopped.Wait(t.Context())
				_, _ = noop.Call(t.Context(), w1, struct{}{}) // what was sent before has come
				for {
					select {
					case what := <-seen:
						if what != "good" {
							t.Error(what)
						}
					case <-time.After(100 * time.Millisecond):
						return
					}
				}
			})
		})
	}
}
