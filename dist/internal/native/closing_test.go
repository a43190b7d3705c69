// SPDX-License-Identifier: Apache-2.0

package native

import (
	"reflect"
	"testing"

	"github.com/cohort-ml/cohort/dist/operation"
)

// FuzzCheck reads what claims to be a rank's last calls, and its word that
// others' fit.
func FuzzCheck(f *testing.F) {
	first := operation.Call{Op: operation.Broadcast, DType: operation.Float32, Root: 1, Count: 4, Seq: 7}
	second := first
	second.Seq = 8
	f.Add(encodeCheck(2, []operation.Call{first, second}))
	f.Add(encodeChecked(3, 8))
	f.Fuzz(func(t *testing.T, b []byte) {
		if rank, calls, err := parseCheck(b, 4); err == nil {
			again, same, err := parseCheck(encodeCheck(rank, calls), 4)
			if err != nil || again != rank || !reflect.DeepEqual(same, calls) {
				t.Errorf("rank %d, %v came back as rank %d, %v: %v", rank, calls, again, same, err)
			}
		}
		if rank, seq, err := parseChecked(b, 4); err == nil {
			if r, s, err := parseChecked(encodeChecked(rank, seq), 4); err != nil || r != rank || s != seq {
				t.Errorf("rank %d, %d came back as rank %d, %d: %v", rank, seq, r, s, err)
			}
		}
	})
}
