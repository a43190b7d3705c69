// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
)

type common struct {
	Out   string `flag:"out" run:"here" json:"-" group:"Run" usage:"save to {DIR}"`
	Ranks int    `json:"ranks" run:"here" usage:"number of ranks"`
}

type settings struct {
	common
	Seed    int64    `json:"seed" run:"fixed" usage:"decides the order"`
	LR      float64  `json:"lr" group:"Optimizer" usage:"highest learning rate"`
	Deep    bool     `json:"go_deep" usage:"go deep"`
	Targets []string `json:"targets" usage:"which"`
	Prompt  string   `json:"prompt,omitempty" group:"Sample" values:"hi|ho" usage:"text"`
	Private int      `json:"private"`
}

func defaults() *settings {
	return &settings{common: common{"out/x", 2}, Seed: 1, LR: 1e-3, Targets: []string{"a", "b"}, Prompt: "hi", Private: 7}
}

func TestFields(t *testing.T) {
	v := defaults()
	s := New(v)
	if got, want := s.Names(), []string{"out", "ranks", "seed", "lr", "go-deep", "targets", "prompt"}; !slices.Equal(got, want) {
		t.Fatalf("fields %q, want %q", got, want)
	}
	help := ""
	for _, f := range s.Fields() {
		help += fmt.Sprintf("%s: --%s %s, %s %q\n", f.Group, f.Name, f.ValueName, f.Usage, f.Values)
	}
	want := `Run: --out DIR, save to DIR []
Run: --ranks N, number of ranks []
: --seed N, decides the order []
Optimizer: --lr NUMBER, highest learning rate []
Optimizer: --go-deep , go deep []
Optimizer: --targets LIST, which []
Sample: --prompt hi|ho, text ["hi" "ho"]
`
	if help != want {
		t.Errorf("help\n%swant\n%s", help, want)
	}
	if s.Field("private") != nil || len(s.Given()) != 0 {
		t.Errorf("a field without usage is there, or given: %v", s.Given())
	}
	for name, text := range map[string]string{"out": "o", "ranks": "4", "seed": "-3", "lr": "inf", "go-deep": "true", "targets": "x,y,z", "prompt": "a,b"} {
		f := s.Field(name)
		if err := f.SetText(text, Flag); err != nil || f.From != Flag {
			t.Errorf("%s: %v", name, err)
		}
		if got := strings.ToLower(strings.TrimPrefix(f.Text(), "+")); got != text {
			t.Errorf("%s is %q, want %q", name, got, text)
		}
	}
	set := &settings{common: common{"o", 4}, Seed: -3, LR: math.Inf(1), Deep: true, Targets: []string{"x", "y", "z"}, Prompt: "a,b", Private: 7}
	if !reflect.DeepEqual(v, set) {
		t.Errorf("%+v, want %+v", v, set)
	}
	for name, text := range map[string]string{"ranks": "two", "seed": "1.5", "lr": "", "go-deep": "maybe"} {
		f := s.Field(name)
		before := f.Text()
		if err := f.SetText(text, "elsewhere"); err == nil || f.Text() != before || f.From != Flag {
			t.Errorf("%s = %q: error %v, value %s from %s", name, text, err, f.Text(), f.From)
		}
	}
	if err := s.Field("ranks").SetText("1e3", Flag); err != nil || v.Ranks != 1000 {
		t.Errorf("1e3 is %d: %v", v.Ranks, err)
	}
	if err := s.Field("ranks").SetText("1.5", Flag); err == nil || err.Error() != "want a whole number" {
		t.Errorf("1.5 ranks: %v", err)
	}
	if err := s.Field("seed").SetText("99999999999999999999", Flag); err == nil || !strings.Contains(err.Error(), "out of range") {
		t.Errorf("a seed out of range: %v", err)
	}
}

func TestValuesOfFiles(t *testing.T) {
	for _, c := range []struct {
		name string
		v    any
		want string // "" is good
	}{
		{"ranks", int64(3), ""}, {"seed", int64(math.MinInt64), ""}, {"lr", 0.5, ""}, {"lr", int64(1), ""}, {"go-deep", true, ""},
		{"targets", []any{"q"}, ""}, {"targets", []any{}, ""}, {"prompt", "", ""},
		{"ranks", "3", `ranks is the string "3", want a whole number`},
		{"ranks", 3.5, "ranks is 3.5, want a whole number"}, {"ranks", 1e300, "ranks is 1e+300, want a whole number"},
		{"ranks", 1e3, ""}, {"targets", []any{int64(64), "32"}, ""},
		{"lr", "fast", `lr is the string "fast", want a number`},
		{"go-deep", int64(1), "go-deep is 1, want true or false"},
		{"prompt", true, "prompt is true, want a string in quotes"},
		{"prompt", map[string]any{}, "prompt is a table, want a string in quotes"},
		{"targets", "q,v", `targets is the string "q,v", want a list of strings`},
		{"targets", []any{"q", true}, "targets has true as its element 1, want a string"},
	} {
		s := New(defaults())
		f := s.Field(c.name)
		before := f.Text()
		err := f.Set(c.v, "x.toml:3")
		if c.want == "" && (err != nil || f.From != "x.toml:3") || c.want != "" && (err == nil || err.Error() != c.want || f.Text() != before || f.From != Default) {
			t.Errorf("%s = %v: error %v, want %q; it is %q from %s", c.name, c.v, err, c.want, f.Text(), f.From)
		}
	}
}

func TestAdopt(t *testing.T) {
	saved := defaults()
	saved.Out, saved.Ranks, saved.Seed, saved.LR, saved.Deep, saved.Private = "", 4, 9, 0.5, true, 3
	mine := defaults()
	s := New(mine)
	s.SetGiven(map[string]string{"lr": Flag, "ranks": Flag, "prompt": "x.toml:1", "no-such": Flag})
	if got := s.Adopt(saved, "step-00000007"); len(got) > 0 {
		t.Errorf("conflicts %q", got)
	}
	want := defaults()
	want.Seed, want.Deep = 9, true
	if !reflect.DeepEqual(mine, want) {
		t.Errorf("%+v, want %+v", mine, want)
	}
	// What the file gave as it was is the checkpoint's now.
	if got, want := s.Given(), map[string]string{"lr": Flag, "ranks": Flag}; !maps.Equal(got, want) {
		t.Errorf("given %v, want %v", got, want)
	}
	if got, want := s.Summary(), "lr = 0.001 (flag)"; got != want {
		t.Errorf("in a line: %q, want %q", got, want)
	}
	if from := s.Field("seed").From; from != "step-00000007" {
		t.Errorf("the seed is from %s", from)
	}

	s = New(defaults())
	s.SetGiven(map[string]string{"seed": "x.toml:2"})
	if got, want := s.Adopt(saved, "x"), []string{"--seed is 1, the checkpoint's 9"}; !slices.Equal(got, want) {
		t.Errorf("conflicts %q, want %q", got, want)
	}
}

func TestTOML(t *testing.T) {
	v := defaults()
	v.LR, v.Prompt, v.Targets = math.Inf(-1), "a \"b\"\\\n\t\x01é\xff", nil
	s := New(v)
	s.Field("seed").From = "evil\nseed = 3"
	got := string(s.TOML("a", "b\rc"))
	want := `# a
# b?c
out = "out/x"                     # default
ranks = 2                         # default
seed = 1                          # evil?seed = 3
lr = -inf                         # default
go-deep = false                   # default
targets = []                      # default
prompt = "a \"b\"\\\n\t\u0001é�"  # default
`
	if got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	for value, want := range map[float64]string{1: "1.0", 0.007: "0.007", 1e30: "1e+30", 1e-9: "1e-09"} {
		v.LR = value
		if got := s.Field("lr").toml(); got != want {
			t.Errorf("%v is written as %s, want %s", value, got, want)
		}
	}
}

func TestStructsThatAreNoSettings(t *testing.T) {
	for what, v := range map[string]any{
		"no pointer": settings{},
		"kind": &struct {
			A complex64 `json:"a" usage:"u"`
		}{},
		"no name": &struct {
			A int `json:"-" usage:"u"`
		}{},
		"twice": &struct {
			A, B int `flag:"a" usage:"u"`
		}{},
		"tag": &struct {
			A int `json:"a" usage:"u" run:"never"`
		}{},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: it was taken", what)
				}
			}()
			New(v)
		}()
	}
}

// TestAdoptNothing: a setting that the checkpoint's run had not is named as such.
// TestAdoptEmptyLists: a list that a file says is empty is that of a checkpoint that has none.
func TestAdoptEmptyLists(t *testing.T) {
	type lists struct {
		Mix []string `json:"mix" run:"fixed" usage:"which"`
	}
	for _, saved := range [][]string{nil, {}, {"a"}} {
		s := New(&lists{Mix: []string{}})
		s.SetGiven(map[string]string{"mix": "x.toml:1"})
		if got := s.Adopt(&lists{Mix: saved}, "x"); (len(got) > 0) != (len(saved) > 0) {
			t.Errorf("%#v: conflicts %q", saved, got)
		}
	}
}

func TestAdoptNothing(t *testing.T) {
	type only struct {
		From string `json:"from" run:"fixed" usage:"where it begins"`
	}
	s := New(&only{})
	if err := s.Field("from").SetText("out/i", Flag); err != nil {
		t.Fatal(err)
	}
	if got, want := s.Adopt(&only{}, "x"), []string{`--from is out/i, the checkpoint's ""`}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
