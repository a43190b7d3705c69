// SPDX-License-Identifier: Apache-2.0

package envvar

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Every constant of type Var is in the list, once, with its meaning.
func TestListIsComplete(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "envvar.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	declared := map[Var]int{}
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok {
			if id, ok := spec.Type.(*ast.Ident); ok && id.Name == "Var" {
				name, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
				if err != nil {
					t.Fatal(err)
				}
				declared[Var(name)]++
			}
		}
		return true
	})
	if len(declared) < 20 {
		t.Fatalf("found only %d constants in the source", len(declared))
	}
	for _, s := range List() {
		if declared[s.Var] != 1 {
			t.Errorf("%s is listed but not declared, or twice", s.Var)
		}
		delete(declared, s.Var)
		if s.Meaning == "" {
			t.Errorf("%s has no meaning", s.Var)
		}
	}
	for v := range declared {
		t.Errorf("%s is declared but not listed", v)
	}
}

func TestListHidesSecrets(t *testing.T) {
	t.Setenv("COHORT_TOKEN", "very secret")
	t.Setenv("RANK", " 3 ")
	t.Setenv("WORLD_SIZE", "")
	for _, s := range List() {
		if strings.Contains(s.Value, "secret") {
			t.Errorf("%s shows its value", s.Var)
		}
		switch s.Var {
		case Rank:
			if s.Value != "3" || !s.IsSet {
				t.Errorf("RANK: %+v", s)
			}
		case WorldSize:
			if s.IsSet {
				t.Errorf("WORLD_SIZE is empty but counts as set")
			}
		}
	}
}

func TestParsing(t *testing.T) {
	const v Var = "COHORT_TEST_VALUE"
	check := func(value string, parse func() (any, error), want any) {
		t.Helper()
		t.Setenv(string(v), value)
		got, err := parse()
		if want == nil {
			var e *Error
			if !errors.As(err, &e) || e.Var != v || !strings.Contains(err.Error(), string(v)) ||
				value != "" && len(value) < 50 && !strings.Contains(err.Error(), strconv.Quote(value)) {
				t.Errorf("%q: %v, %v; want an error that names the variable and the value", value, got, err)
			}
			return
		}
		if err != nil || got != want {
			t.Errorf("%q: %v, %v, want %v", value, got, err, want)
		}
	}
	integer := func() (any, error) { return v.Int(0, 10) }
	check("7", integer, 7)
	check(" 10\n", integer, 10)
	for _, bad := range []string{"", "-1", "11", "x", "1.5", "99999999999999999999", strings.Repeat("9", 1000)} {
		check(bad, integer, nil)
	}
	check("", func() (any, error) { return v.IntOr(5, 0, 10) }, 5)
	check("11", func() (any, error) { return v.IntOr(5, 0, 10) }, nil)
	choice := func() (any, error) { return v.OneOf("auto", "tcp") }
	check("", choice, "auto")
	check("tcp", choice, "tcp")
	check("udp", choice, nil)
	check("x", func() (any, error) { return v.Require("anything") }, "x")
	check("", func() (any, error) { return v.Require("anything") }, nil)
	check("x", func() (any, error) { return v.Get("y"), nil }, "x")
	check("", func() (any, error) { return v.Get("y"), nil }, "y")
	check("x", func() (any, error) { return v.Assign("z"), nil }, "COHORT_TEST_VALUE=z")
}

func TestDurations(t *testing.T) {
	const v Var = "COHORT_TEST_VALUE"
	for value, want := range map[string]time.Duration{"": time.Minute, "3s": 3 * time.Second, " 1m30s ": 90 * time.Second, "0": 0, "0s": 0} {
		t.Setenv(string(v), value)
		if got, err := v.DurationOr(time.Minute, time.Second, time.Hour); err != nil || got != want {
			t.Errorf("%q: %v, %v, want %v", value, got, err, want)
		}
	}
	for _, value := range []string{"3", "-1s", "1ms", "2h", "x", "1s1"} {
		t.Setenv(string(v), value)
		var e *Error
		if got, err := v.DurationOr(time.Minute, time.Second, time.Hour); !errors.As(err, &e) || e.Var != v || !strings.Contains(err.Error(), "from 1s to 1h0m0s") {
			t.Errorf("%q: %v, %v, want an error that says what is accepted", value, got, err)
		}
	}
}

func TestIsOn(t *testing.T) {
	for value, want := range map[string]bool{"": false, "0": false, " 0 ": false, "false": false, "No": false, "OFF": false, "1": true, "on": true, "2": true, "all_reduce": true} {
		t.Setenv(string(Debug), value)
		if got := Debug.IsOn(); got != want {
			t.Errorf("%s=%q is on: %v, want %v", Debug, value, got, want)
		}
	}
}
