// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/tensor"
)

// TestPanicTold: a panic of a handler has its line in the caller's error, and stands
// with its stack on the standard error of the process that has it, though not for
// every call.
func TestPanicTold(t *testing.T) {
	path := filepath.Join(t.TempDir(), "stderr")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	stderr := os.Stderr
	os.Stderr = file
	defer func() { os.Stderr = stderr }()
	index := NewMethod[int, int]("panic.index")
	a := agents(t, "pipe", 2, serveBasics(), Serve(index, func(_ context.Context, i int) (int, error) { return []int{1}[i], nil }))
	for range 3 {
		if _, err := index.Call(t.Context(), a[0].Peer("w1"), 5); KindOf(err) != KindPanic || !strings.Contains(err.Error(), "index out of range [5]") || !strings.Contains(err.Error(), "(at rpc/panic_test.go:") {
			t.Errorf("a panic: %v; want the line", err)
		}
	}
	for _, x := range a {
		x.Close()
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := string(text); strings.Count(got, "cohort: rpc agent w1: panic.index, called by w0, panicked: ") != 1 || !strings.Contains(got, "panic_test.go:") {
		t.Errorf("standard error has %q; want one line and the stack", got)
	}
}

// TestNilTensorTold: a panic inside of package tensor has the handler's line, and says
// what a nil pointer there is.
func TestNilTensorTold(t *testing.T) {
	sum := NewMethod[*tensor.Tensor, *tensor.Tensor]("panic.sum")
	a := agents(t, "pipe", 2, serveBasics(), Serve(sum, func(_ context.Context, x *tensor.Tensor) (*tensor.Tensor, error) { return x.Sum(), nil }))
	_, err := sum.Call(t.Context(), a[0].Peer("w1"), nil)
	if KindOf(err) != KindPanic || !strings.Contains(err.Error(), "nil pointer dereference; is a tensor nil? (at rpc/panic_test.go:") {
		t.Errorf("%v; want the handler's line and a nil tensor", err)
	}
}

// TestNilPeer: a call to nobody is an error.
func TestNilPeer(t *testing.T) {
	_, err := noop.Call(t.Context(), nil, struct{}{})
	_, err2 := noop.Async(t.Context(), nil, struct{}{}).Wait(t.Context())
	_, err3 := noop.Remote(t.Context(), nil, struct{}{})
	_, err4 := NewStream[int, int]("panic.stream").Open(t.Context(), nil)
	for _, err := range []error{err, err2, err3, err4} {
		if KindOf(err) != KindUnknownPeer || !strings.Contains(err.Error(), "nil") {
			t.Errorf("%v; want kind %q", err, KindUnknownPeer)
		}
	}
	if p := (*Peer)(nil); p.String() != "no peer" {
		t.Errorf("the nil peer is %q", p)
	}
}
