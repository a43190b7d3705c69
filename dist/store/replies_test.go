// SPDX-License-Identifier: Apache-2.0

package store

import (
	"testing"
	"testing/synctest"

	"github.com/cohort-ml/cohort/internal/transport"
)

// TestClientThatReadsNoReplies: its requests that wait are held up while many
// replies to such are unwritten, and go on when it reads or goes.
func TestClientThatReadsNoReplies(t *testing.T) {
	for name, tc := range map[string]struct {
		replies int
		value   []byte
	}{
		"many":  {2 * maxUnsent, make([]byte, 1<<10)},
		"large": {3, make([]byte, MaxValue)},
	} {
		for _, goes := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					here, there := transport.Pipe(proto)
					defer here.Close()
					defer there.Close()
					p := newReplyWriter(here)
					for i := range tc.replies {
						p.wake(uint64(i+1), reply{value: tc.value})
					}
					room := make(chan struct{})
					go func() {
						p.awaitRoom()
						close(room)
					}()
					synctest.Wait()
					select {
					case <-room:
						t.Fatal("a request was taken while none of the replies was read")
					default:
					}
					if goes {
						there.Close()
					} else {
						for range tc.replies {
							if _, _, err := there.ReadFrame(nil, maxFrame); err != nil {
								t.Fatal(err)
							}
						}
					}
					<-room
					p.running.Wait()
					if p.unsent != 0 || p.load != 0 {
						t.Errorf("%d replies of %d bytes are unsent at the end", p.unsent, p.load)
					}
				})
			})
		}
	}
}
