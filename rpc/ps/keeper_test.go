// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
)

// A server writes a snapshot when its log has become long, and comes back from it. A
// snapshot that fails is tried again, and the status says why it failed.
func TestLogLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, 1)
		c.kill(0)
		j := &memory{id: 7}
		const limit = 1000
		c.serve(0, 1, WithJournal(j), WithLogLimit(limit))
		client := c.dial("worker", WithWorker(0, 1, Asynchronous()), WithTables(exact("a", 1)))
		push := func(n int) {
			t.Helper()
			for range n {
				if err := client.Push(t.Context(), one("a", 5, -1)); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
			}
		}
		most, snapshots := int64(0), map[uint64]bool{}
		for range 100 {
			push(1)
			most = max(most, j.Unsaved())
			snapshots[j.at] = true
		}
		// A push is about 80 bytes.
		if most > limit+200 || len(snapshots) < 5 || len(snapshots) > 12 {
			t.Errorf("the log had up to %d bytes behind the last of %d snapshots; the limit is %d", most, len(snapshots)-1, limit)
		}
		j.mu.Lock()
		j.deaf = errors.New("no space left")
		j.mu.Unlock()
		tries := j.tries
		push(40)
		st, err := client.Status(t.Context())
		if err != nil || !strings.Contains(st[0].SnapshotProblem, "snapshot: no space left") || st[0].LogBytes <= limit {
			t.Errorf("the status says %q, and %d bytes of the log: %v", st[0].SnapshotProblem, st[0].LogBytes, err)
		}
		if n := j.tries - tries; n < 3 || n > 25 {
			t.Errorf("in 40 pushes a snapshot was tried %d times", n)
		}
		j.mu.Lock()
		j.deaf = nil
		j.mu.Unlock()
		push(5)
		if st, err := client.Status(t.Context()); err != nil || st[0].SnapshotProblem != "" || st[0].LogBytes > limit {
			t.Errorf("the status says %q, and %d bytes of the log: %v", st[0].SnapshotProblem, st[0].LogBytes, err)
		}
		c.kill(0)
		c.serve(0, 1, WithJournal(j), WithLogLimit(0))
		at := j.at
		push(100)
		if got := c.pullOne(client, "a", 5); got[0] != 245 || j.at != at {
			t.Errorf("the row is %v, want 245; without a limit the last snapshot is at %d, and was at %d", got, j.at, at)
		}
	})
}
