// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"strings"
	"testing"
)

func TestSizes(t *testing.T) {
	values := []int{1, 2}
	s := &sizes{values: &values}
	if got := s.String(); got != "1,2" {
		t.Errorf("the default is shown as %q", got)
	}
	for _, text := range []string{"4, 64K,1m", "2G,3KiB,0"} {
		if err := s.Set(text); err != nil {
			t.Fatal(err)
		}
	}
	if want := []int{4, 64 << 10, 1 << 20, 2 << 30, 3 << 10, 0}; !slices.Equal(values, want) {
		t.Errorf("got %v, want %v", values, want)
	}
	for _, text := range []string{"", "1,", "x", "1T", "-1", "1.5M", "K", "4iB", "1MB", "9223372036854775807K", "9999999999G"} {
		if err := s.Set(text); err == nil || !strings.Contains(err.Error(), "such as 4, 64K or 1M") {
			t.Errorf("Set(%q) gave %v and %v", text, err, values)
		}
	}
}
