// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"
)

// TestWriteMade: bytes that are made while they are written come in their order, whatever
// their units are and wherever the ring ends.
func TestWriteMade(t *testing.T) {
	for name, connect := range map[string]func(testing.TB) (*Conn, *Conn){"shared": func(t testing.TB) (*Conn, *Conn) { return connectShared(t) }, "tcp": func(t testing.TB) (*Conn, *Conn) { return connect(t, "127.0.0.1:0") }} {
		t.Run(name, func(t *testing.T) {
			near, far := connect(t)
			all := make([]byte, 5<<20)
			r := rand.New(rand.NewPCG(1, 2))
			for i := range all {
				all[i] = byte(r.Uint32())
			}
			for _, unit := range []int{1, 4, 256, 1000, 65536} {
				n := len(all) / unit * unit
				if unit == 1 {
					n = 200_001
				}
				wrote := make(chan error, 1)
				go func() {
					wrote <- near.WriteMade(n, unit, func(p []byte, at int) error {
						if len(p)%unit != 0 || at%unit != 0 {
							return errors.New("a part of a unit")
						}
						copy(p, all[at:])
						return nil
					})
				}()
				got := make([]byte, n)
				for done := 0; done < n; {
					m, err := far.Read(got[done:])
					if err != nil {
						t.Fatal(err)
					}
					done += m
				}
				if err := <-wrote; err != nil || !bytes.Equal(got, all[:n]) {
					t.Fatalf("units of %d: other bytes have come, or %v", unit, err)
				}
			}
			if err := near.WriteMade(10, 3, nil); err == nil {
				t.Error("10 bytes in units of 3 were taken")
			}
			bad := errors.New("it cannot be made")
			if err := near.WriteMade(4, 4, func([]byte, int) error { return bad }); !errors.Is(err, bad) {
				t.Errorf("got %v", err)
			}
			if err := near.WriteFrame(1); err == nil {
				t.Error("a frame was written after half of another")
			}
		})
	}
}
