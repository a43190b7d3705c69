// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/rpc/internal/agenttest"
	"github.com/cohort-ml/cohort/tensor"
)

// lazyRows are uint8 [n, width·4] whose 32-bit words count from 0, and the calls of Fill.
func lazyRows(n, width int) *LazyTensor {
	return &LazyTensor{DType: tensor.Uint8, Shape: []int{n, 4 * width}, Fill: func(dst []byte, at int) error {
		if at%(4*width) != 0 || len(dst)%(4*width) != 0 {
			return errors.New("Fill is asked for a part of a row")
		}
		for i := 0; i < len(dst); i += 4 {
			binary.LittleEndian.PutUint32(dst[i:], uint32((at+i)/4))
		}
		return nil
	}}
}

// TestLazyTensors: tensors that are computed while they are written arrive as others do,
// among others, of all sizes: also larger than the memory between processes.
func TestLazyTensors(t *testing.T) {
	type lazy struct{ List []*LazyTensor }
	type plain struct{ List []*tensor.Tensor }
	ask, served := NewMethod[int, plain]("test.lazy"), NewMethod[int, lazy]("test.lazy")
	if ask.Types() != served.Types() {
		t.Fatalf("the types %q and %q differ", ask.Types(), served.Types())
	}
	agenttest.Over(t, func(t *testing.T, kind string) {
		a := agents(t, kind, 2, serveBasics(), Serve(served, func(_ context.Context, n int) (lazy, error) {
			return lazy{[]*LazyTensor{lazyRows(n, 257), {Ready: tensor.Full(3, n, 2)}, lazyRows(0, 1), lazyRows(1, n), nil, lazyRows(n, 3)}}, nil
		}, WithTransient()))
		for _, n := range []int{1, 15, 16, 1000, 1021, 5000} {
			out, err := ask.Call(t.Context(), a[0].Peer("w1"), n)
			if err != nil {
				t.Fatal(err)
			}
			for i, size := range []int{n * 257, 0, 0, n, 0, n * 3} {
				if i == 1 {
					if x := out.List[i].Float32s(); len(x) != 2*n || x[2*n-1] != 3 {
						t.Errorf("%d rows: the ready tensor is %v", n, x)
					}
					continue
				}
				if i == 4 {
					if out.List[i] != nil {
						t.Errorf("%d rows: nil came as %v", n, out.List[i].Shape())
					}
					continue
				}
				got := out.List[i].Buffer().Data
				if len(got) != 4*size {
					t.Fatalf("%d rows: tensor %d has %d bytes, want %d", n, i, len(got), 4*size)
				}
				for j := range size {
					if v := binary.LittleEndian.Uint32(got[4*j:]); v != uint32(j) {
						t.Fatalf("%d rows: word %d of tensor %d is %d", n, j, i, v)
					}
				}
			}
		}
	})
}

// TestLazyTensorFails: an error or a panic of Fill is the call's where nothing has been
// written. Otherwise it ends the connection, and the next call makes another one.
func TestLazyTensorFails(t *testing.T) {
	ask, served := NewMethod[string, *tensor.Tensor]("test.fails"), NewMethod[string, *LazyTensor]("test.fails")
	agenttest.Over(t, func(t *testing.T, kind string) {
		a := agents(t, kind, 2, serveBasics(), Serve(served, func(_ context.Context, how string) (*LazyTensor, error) {
			rows := 4
			if strings.HasPrefix(how, "large") {
				rows = 1 << 18
			}
			x := lazyRows(rows, 4)
			fill := x.Fill
			x.Fill = func(dst []byte, at int) error {
				switch {
				case rows > 4 && at+len(dst) < 2<<20 || strings.HasSuffix(how, "good"):
					return fill(dst, at)
				case strings.HasSuffix(how, "panics"):
					panic("the rows are gone")
				}
				return errors.New("the rows are gone")
			}
			return x, nil
		}))
		w1 := a[0].Peer("w1")
		for _, how := range []string{"small error", "small panics", "large error", "large panics"} {
			_, err := ask.Call(t.Context(), w1, how)
			if how[0] == 's' && (err == nil || !strings.Contains(err.Error(), "the rows are gone")) {
				t.Errorf("%s: got %v", how, err)
			}
			if how[0] == 'l' && KindOf(err) != KindLost {
				t.Errorf("%s: got %v, want a lost connection", how, err)
			}
			if x, err := ask.Call(t.Context(), w1, "large good"); err != nil || x.NumElems() != 4<<20 {
				t.Errorf("after %s: %v", how, err)
			}
		}
	})
}
