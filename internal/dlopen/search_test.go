// SPDX-License-Identifier: Apache-2.0

package dlopen

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestLocate: the first name of the first directory of a pattern is found.
func TestLocate(t *testing.T) {
	root := t.TempDir()
	for _, path := range []string{"b/lib/two.so", "c/lib/one.so", "c/lib/two.so"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, path)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, path), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	names := []string{"one.so", "two.so"}
	for pattern, want := range map[string]string{"*/lib": "b/lib/two.so", "c/lib": "c/lib/one.so", "none": "", "d*/lib": ""} {
		got, err := locate(names, filepath.Join(root, pattern))
		if want != "" {
			want = filepath.Join(root, want)
		}
		if err != nil || got != want {
			t.Errorf("%s: %q, %v; want %q", pattern, got, err, want)
		}
	}
	if _, err := locate(names, filepath.Join(root, "c/lib/one.so")); err == nil {
		t.Error("a file in place of a directory is no error")
	}
}

// TestSearch: a program that cannot load libraries says so. Others say where they have
// looked, and stop at a file that is no library.
func TestSearch(t *testing.T) {
	root := t.TempDir()
	places := []Place{{Dir: filepath.Join(root, "none"), Why: "of a variable"}, {}, {Dir: root}}
	_, err := Search([]string{"libno-such-library.so.7"}, places)
	if !Built {
		if !errors.Is(err, ErrNotBuilt) {
			t.Errorf("the error is %v", err)
		}
		return
	}
	var missing *NotFoundError
	want := "libno-such-library.so.7 is not found in " + root + "/none (of a variable), the system's loader, " + root
	if !errors.As(err, &missing) || err.Error() != want {
		t.Errorf("the error is %v, want %s", err, want)
	}
	path := filepath.Join(root, "libno-such-library.so.7")
	if err := os.WriteFile(path, []byte("no library"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Search([]string{"libno-such-library.so.7"}, places); err == nil || errors.As(err, &missing) || !strings.Contains(err.Error(), path) {
		t.Errorf("of a file that is no library: %v", err)
	}
}
