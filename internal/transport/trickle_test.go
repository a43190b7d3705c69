// SPDX-License-Identifier: Apache-2.0

//go:build linux

package transport

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/internal/seeded"
)

// Long payloads whose bytes come in parts of any size, with pauses
// between them, arrive: a reader that asked to be woken
// for much is not left waiting for little.
func TestPayloadsThatTrickle(t *testing.T) {
	seed := seeded.Of(t)
	for _, addr := range []string{"127.0.0.1:0", "unix:"} {
		r := rand.New(rand.NewPCG(seed, 2))
		near, far := connect(t, addr)
		by := time.Now().Add(patience)
		near.SetDeadline(by)
		far.SetDeadline(by)
		sizes := []int{3 * wakeBytes, 10, wakeBytes + 1, 0, shortRead + 1, 2*wakeBytes + readAhead}
		var stream, all []byte
		for i, n := range sizes {
			payload := pattern(n, uint64(i))
			all = append(all, payload...)
			stream = append(appendHeader(stream, byte(i), n), payload...)
		}
		go func() {
			for len(stream) > 0 {
				n := min(len(stream), []int{1, 7, 100, 5000, 100_000, 1 << 20}[r.IntN(6)])
				if _, err := far.Write(stream[:n]); err != nil {
					t.Error(err)
					return
				}
				stream = stream[n:]
				time.Sleep(time.Duration(r.IntN(1500)) * time.Microsecond)
			}
		}()
		for i, n := range sizes {
			kind, got, err := near.ReadFrame(nil, n)
			if err != nil || int(kind) != i || !bytes.Equal(got, all[:n]) {
				t.Fatalf("%s: frame %d of %d bytes: kind %d, %d bytes, %v", addr, i, n, kind, len(got), err)
			}
			all = all[n:]
		}
	}
}
