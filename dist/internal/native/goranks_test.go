// SPDX-License-Identifier: Apache-2.0

package native

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist/internal/collective"
)

// TestOneRankExplains: of goroutine ranks rank 0 tells how a collective is served,
// once, whoever comes first to the meeting.
func TestOneRankExplains(t *testing.T) {
	for first := range 3 {
		t.Run(fmt.Sprintf("rank%d first", first), func(t *testing.T) {
			var mu sync.Mutex
			var told []string
			meetings := NewGoMeetings(GoRanksOptions{})
			ranks := make([]*Shm, 3)
			for i := range ranks {
				r := (first + i) % 3
				cfg := Config{Group: "test", Key: "test", Rank: r, Members: members(3), Timeout: time.Minute}
				if r == 0 {
					cfg.Explain = NewExplainer("test", func(line string) {
						mu.Lock()
						defer mu.Unlock()
						told = append(told, line)
					})
				}
				var err error
				if ranks[r], err = meetings.Join(cfg); err != nil {
					t.Fatal(err)
				}
			}
			var wg sync.WaitGroup
			for _, s := range ranks {
				wg.Go(func() {
					data := sharedData(8)
					c := collective.Call{Op: collective.OpAllReduce, DType: collective.Uint8, Count: 8, Seq: 1}
					if err := s.Collective(t.Context(), c, data, data); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			if len(told) != 1 || !strings.Contains(told[0], "all_reduce") {
				t.Errorf("told: %q, want one line about the all_reduce", told)
			}
		})
	}
}
