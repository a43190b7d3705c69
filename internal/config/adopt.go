// SPDX-License-Identifier: Apache-2.0

package config

import (
	"cmp"
	"fmt"
	"reflect"
)

// Adopt takes the settings of a checkpoint's run for a run that resumes. saved
// points to a value of the same struct, with the checkpoint's settings. from is
// the source that the adopted settings get.
//
// A setting that the user gave keeps the user's value. If such a setting has the
// tag run:"fixed" and differs from the checkpoint, Adopt returns a phrase about
// it: "--width is 64, the checkpoint's 32".
//
// A setting that a file gives with the checkpoint's own value counts as adopted:
// the config.toml of a run does not bind the run more than its checkpoint does.
func (s *Settings) Adopt(saved any, from string) (conflicts []string) {
	old := New(saved)
	for i, f := range s.fields {
		was := old.fields[i].value
		same := equal(f.value, was)
		switch {
		case f.run == here:
		case f.From == Default, same && f.From != Flag:
			f.value.Set(was)
			f.From, f.adopted = from, true
		case f.run == fixed && !same:
			conflicts = append(conflicts, fmt.Sprintf("--%s is %s, the checkpoint's %s", f.Name, cmp.Or(f.Text(), `""`), cmp.Or(old.fields[i].Text(), `""`)))
		}
	}
	return conflicts
}

// equal says whether two values of a setting are the same: a list that is empty is none.
func equal(a, b reflect.Value) bool {
	if a.Kind() == reflect.Slice && a.Len() == 0 && b.Len() == 0 {
		return true
	}
	return reflect.DeepEqual(a.Interface(), b.Interface())
}
