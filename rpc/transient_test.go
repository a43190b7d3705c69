// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/cohort-ml/cohort/rpc/internal/agenttest"
	"github.com/cohort-ml/cohort/tensor"
)

// The memory of a transient method's arguments and result is given back, and only
// when the answer has been sent; an error's too.
func TestTransient(t *testing.T) {
	double := NewMethod[addArgs, *tensor.Tensor]("test.double")
	agenttest.Over(t, func(t *testing.T, kind string) {
		var mu sync.Mutex
		var seen []*tensor.Tensor
		a := agents(t, kind, 2, Serve(double, func(_ context.Context, in addArgs) (*tensor.Tensor, error) {
			out := in.X.Add(in.Y)
			mu.Lock()
			defer mu.Unlock()
			seen = append(seen, in.X, in.Y, out)
			if in.X.Item() < 0 {
				return nil, fmt.Errorf("negative")
			}
			return out, nil
		}, WithTransient()))
		for i := range 20 {
			x := tensor.Full(float64(i), 1)
			out, err := double.Call(t.Context(), a[0].Peer("w1"), addArgs{x, x})
			if err != nil || out.Item() != float64(2*i) {
				t.Fatalf("%v, %v", out, err)
			}
		}
		x := tensor.Full(-1, 1)
		if _, err := double.Call(t.Context(), a[0].Peer("w1"), addArgs{x, x}); err == nil {
			t.Error("no error")
		}
		if err := a[1].Close(); err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		defer mu.Unlock()
		freed := 0
		for _, x := range seen {
			func() {
				defer func() {
					if recover() != nil {
						freed++
					}
				}()
				x.Item()
			}()
		}
		// The result of the call that failed was never one to be sent.
		if want := len(seen) - 1; freed != want {
			t.Errorf("%d of %d tensors have been freed, want %d", freed, len(seen), want)
		}
		if x.Item() != -1 {
			t.Error("the caller's tensor has changed")
		}
	})
}
