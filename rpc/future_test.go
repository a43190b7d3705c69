// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"errors"
	"testing"
)

// A future that is done gives what it was made of, and its continuations run.
func TestResolved(t *testing.T) {
	double := func(v int) (int, error) { return 2 * v, nil }
	f := Resolved(21, nil)
	select {
	case <-f.Done():
	default:
		t.Error("it is not done")
	}
	if v, err := Then(f, double).Wait(t.Context()); v != 42 || err != nil {
		t.Errorf("got %d, %v", v, err)
	}
	broken := errors.New("broken")
	if _, err := Then(Resolved(0, broken), double).Wait(t.Context()); !errors.Is(err, broken) {
		t.Errorf("got %v, want %v", err, broken)
	}
}
