// SPDX-License-Identifier: Apache-2.0

package native

import (
	"reflect"
	"testing"
)

// FuzzOverdue reads what claims to be the time-out of a rank.
func FuzzOverdue(f *testing.F) {
	f.Add((&timedOut{op: "barrier", seq: 3, missing: []int{1, 2}, why: "timed out"}).encode())
	f.Fuzz(func(t *testing.T, text string) {
		o, err := parseTimedOut(text, 4)
		if err != nil || len(text) > maxFaultText {
			return
		}
		if again, err := parseTimedOut(o.encode(), 4); err != nil || !reflect.DeepEqual(again, o) {
			t.Errorf("%+v came back as %+v: %v", o, again, err)
		}
	})
}
