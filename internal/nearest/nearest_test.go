// SPDX-License-Identifier: Apache-2.0

package nearest

import "testing"

// TestName: a slip of the hand finds its name, and another word finds none.
func TestName(t *testing.T) {
	known := []string{"replicate", "fsdp", "tp", "--batch", "--best", "tensor_parallel"}
	for name, want := range map[string]string{
		"fspd": "fsdp", "FSDP": "fsdp", "replicat": "replicate", "tensor": "tensor_parallel", "--bacth": "--batch", "--bet": "--best",
		"pipeline": "", "": "tp",
	} {
		if got := Name(name, known); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}

func TestDistance(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"run", "run", 0}, {"rnu", "run", 2}, {"run", "", 3}, {"ru", "run", 1}, {"kitten", "sitting", 3}} {
		if got := distance(tt.a, tt.b); got != tt.want {
			t.Errorf("distance(%q, %q) = %d, want %d", tt.a, tt.b, got, tt.want)
		}
	}
}
