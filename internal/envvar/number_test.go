// SPDX-License-Identifier: Apache-2.0

package envvar

import (
	"encoding/json"
	"math"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"unicode"
)

// TestParseNumber compares with what CPython 3.11 made of the same texts
// (testdata/numbers.py).
func TestParseNumber(t *testing.T) {
	b, err := os.ReadFile("testdata/numbers.json")
	if err != nil {
		t.Fatal(err)
	}
	var golden []struct {
		Text       string
		Int, Float *string // null: ValueError
	}
	if err := json.Unmarshal(b, &golden); err != nil {
		t.Fatal(err)
	}
	if len(golden) < 50 {
		t.Fatalf("%d texts", len(golden))
	}
	for _, g := range golden {
		n, err := ParseInt(g.Text)
		if got, want := strconv.Itoa(n), g.Int; want == nil && err == nil || want != nil && (err != nil || got != *want) {
			t.Errorf("int(%q): %d, %v, want %v", g.Text, n, err, text(want))
		}
		f, err := ParseFloat(g.Text)
		if g.Float == nil {
			if err == nil {
				t.Errorf("float(%q): %v, want an error", g.Text, f)
			}
			continue
		}
		want, bad := strconv.ParseFloat(*g.Float, 64)
		if bad != nil {
			t.Fatal(bad)
		}
		if err != nil || f != want && !(math.IsNaN(f) && math.IsNaN(want)) {
			t.Errorf("float(%q): %v, %v, want %v", g.Text, f, err, want)
		}
	}
}

func text(s *string) string {
	if s == nil {
		return "an error"
	}
	return *s
}

// The digits of every script are ten in a row, from zero on, which digitOf counts on.
func TestDigitsAreInTens(t *testing.T) {
	for _, r := range unicode.Nd.R16 {
		if r.Stride != 1 || (r.Hi-r.Lo+1)%10 != 0 {
			t.Errorf("%#v", r)
		}
	}
	for _, r := range unicode.Nd.R32 {
		if r.Stride != 1 || (r.Hi-r.Lo+1)%10 != 0 {
			t.Errorf("%#v", r)
		}
	}
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip(err)
	}
	out, err := exec.Command(python, "-c", `
import json, sys
print(json.dumps({str(c): int(chr(c)) for c in range(sys.maxunicode + 1) if chr(c).isdecimal()}))`).Output()
	if err != nil {
		t.Skip(err)
	}
	var digits map[string]int
	if err := json.Unmarshal(out, &digits); err != nil {
		t.Fatal(err)
	}
	for c, want := range digits {
		n, _ := strconv.Atoi(c)
		if got := digitOf(rune(n)); got != want {
			t.Errorf("%U is %d, want %d", n, got, want)
		}
	}
}

func FuzzParseNumber(f *testing.F) {
	for _, s := range []string{" 2 ", "1_0", "\u0662", "_", "1e5", "0x1", "\xff2"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := ParseInt(s)
		if err != nil || n == math.MinInt {
			return
		}
		if again, err := ParseInt("\u00a0+" + strconv.Itoa(max(n, -n)) + "\r"); err != nil || again != max(n, -n) {
			t.Errorf("%q is %d, which is read as %d, %v", s, n, again, err)
		}
	})
}
