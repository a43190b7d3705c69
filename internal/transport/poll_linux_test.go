// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"testing"
	"time"
)

// A short frame ends a wait in the system that comes after one for much.
func TestPollAfterLongRead(t *testing.T) {
	near, far := connect(t, "127.0.0.1:0")
	s := far.in.sys.(*socket)
	if err := s.raw.Control(func(fd uintptr) {
		if !s.setLowWater(fd, wakeBytes) {
			t.Error("a socket does not take a low-water mark")
		}
	}); err != nil {
		t.Fatal(err)
	}
	// It comes when the wait has begun.
	time.AfterFunc(5*time.Millisecond, func() {
		if err := near.WriteFrame(2); err != nil {
			t.Error(err)
		}
	})
	began := time.Now()
	const long = 20 * time.Second
	for !far.Poll(PollOptions{Block: long}) {
	}
	if waited := time.Since(began); waited >= long {
		t.Errorf("a short frame was found after %v", waited)
	}
}
