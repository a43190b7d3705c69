// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"runtime"
	"testing"
)

func TestPending(t *testing.T) {
	eachLink(t, func(t *testing.T, near, far *Conn) {
		if far.Pending() {
			t.Fatal("something is pending before anything was sent")
		}
		sent := make(chan error, 1)
		go func() { sent <- near.WriteFrame(1, []byte("x")) }()
		if near.socketOf() != nil {
			for !far.Pending() { // on its way; the test's time limit ends this
				runtime.Gosched()
			}
		}
		if _, _, err := far.ReadFrame(nil, 10); err != nil {
			t.Fatal(err)
		}
		if err := <-sent; err != nil {
			t.Fatal(err)
		}
		if far.Pending() {
			t.Error("something is pending after all was read")
		}
		near.Close()
		for near.socketOf() != nil && !far.Pending() { // the end
			runtime.Gosched()
		}
	})
}
