// SPDX-License-Identifier: Apache-2.0

package config

import (
	"cmp"
	"fmt"
	"reflect"
)

// Adopt takes over the settings that a checkpoint's run was made with, which
// saved, a pointer to the same struct, has. What the user gave stays; where the
// tag run says fixed, it must be as it was, and what differs is returned, a
// phrase each: "--width is 64, the checkpoint's 32". from is what the values
// are said to come from.
//
// What a file gives as it was counts as taken over: a run's own config.toml
// does not bind the run more than its checkpoint does.
func (s *Settings) Adopt(saved any, from string) (conflicts []string) {
	old := New(saved)
	for i, f := range s.fields {
		was := old.fields[i].value
		same := reflect.DeepEqual(f.Value(), was.Interface())
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
