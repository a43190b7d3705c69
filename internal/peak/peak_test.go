// SPDX-License-Identifier: Apache-2.0

package peak

import (
	"os"
	"path/filepath"
	"testing"
)

// TestOf: rates are measured once, the file keeps them, the larger of two wins, and a damaged file is
// made again.
func TestOf(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cache")
	if r, ok := Known(dir, "float32", 1); ok {
		t.Errorf("an empty directory knows %+v", r)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("Known has made a directory")
	}
	first, err := Of(t.Context(), dir, "float32", 1)
	if err != nil || !first.IsKnown() {
		t.Fatalf("Of = %+v, %v", first, err)
	}
	again, err := Of(t.Context(), dir, "float32", 1)
	if r, ok := Known(dir, "float32", 1); !ok || r != first {
		t.Errorf("Known = %+v, %t, want %+v", r, ok, first)
	}
	if err != nil || again != first {
		t.Errorf("the second time %+v, %v, want %+v from the file", again, err, first)
	}
	if err := Reached(dir, "float32", 1, first.FLOPs/2); err != nil {
		t.Error(err)
	}
	if err := Reached(dir, "float32", 1, 2*first.FLOPs); err != nil {
		t.Error(err)
	}
	want := Rates{FLOPs: 2 * first.FLOPs, Bytes: first.Bytes}
	if got, err := Of(t.Context(), dir, "float32", 1); err != nil || got != want {
		t.Errorf("after a faster step %+v, %v, want %+v", got, err, want)
	}
	path := filepath.Join(dir, "rates.json")
	if err := write(path, entry{keyOf("float32", 1), Rates{1, 1}}); err != nil {
		t.Fatal(err)
	}
	if got := read(path); len(got) != 1 || got[0].Rates != want {
		t.Errorf("the file has %+v after smaller rates, want %+v", got, want)
	}
	if err := os.WriteFile(path, []byte("[{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := read(path); got != nil {
		t.Errorf("a damaged file has %+v", got)
	}
}

// TestOfWithoutPlace: nothing is measured where the rates cannot be kept.
func TestOfWithoutPlace(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if r, err := Of(t.Context(), filepath.Join(file, "cache"), "float32", 1); err == nil || r != (Rates{}) {
		t.Errorf("Of = %+v, %v, want an error", r, err)
	}
}
