// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/data/records"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/internal/errorfile"
	"github.com/cohort-ml/cohort/nn"
)

// TestLikeness: what one rank has otherwise stops the run before a step, on all ranks, and a table
// names the rank, what differs, and what mends it.
func TestLikeness(t *testing.T) {
	recipe := func(text string) func(*Task[points], *Options) {
		return func(_ *Task[points], o *Options) { o.Recipe = json.RawMessage(text) }
	}
	for _, tt := range []struct {
		name        string
		first, then func(task *Task[points], o *Options) // of all ranks but 1, and of rank 1
		rows        []string                             // of the table, with their mends; "-" does not stand in it
	}{
		{"a setting", recipe(`{"clip":1,"name":"a"}`), recipe(`{"clip":2,"name":"a"}`), []string{"setting.clip 1 2", "mend: give --clip 1 to these ranks", "-setting.name"}},
		{"a switch", recipe(`{"save_async":true}`), recipe(`{"save_async":false}`), []string{"setting.save_async true false", "mend: give --save-async=true to these ranks"}},
		{"a setting too many", recipe(`{"a":1}`), recipe(`{"a":1,"b_c":2}`), []string{"setting.b_c - 2", "mend: leave --b-c out"}},
		{"a setting that is a list", recipe(`{"a":["x","y"]}`), recipe(`{"a":["x"]}`), []string{`setting.a ["x","y"] ["x"]`}},
		{"a secret", recipe(`{"data":"s3://me:first@host/a"}`), recipe(`{"data":"s3://me:second@host/b"}`), []string{"setting.data s3://***@host/a s3://***@host/b", "-first", "-second"}},
		{"weights", recipe(`{"init_from":"out/base","base":"01234567"}`), recipe(`{"init_from":"out/base","base":"76543210"}`),
			[]string{"run.weights 01234567 76543210", "mend: copy out/base from another node: its weights have the checksum 01234567"}},
		{"what follows from a setting", func(_ *Task[points], o *Options) { o.Recipe, o.Clip = json.RawMessage(`{"clip":1}`), 1 },
			func(_ *Task[points], o *Options) { o.Recipe, o.Clip = json.RawMessage(`{"clip":2}`), 2 }, []string{"setting.clip 1 2", "-option"}},
		{"an option", func(*Task[points], *Options) {}, func(_ *Task[points], o *Options) { o.NaN = "skip" }, []string{"option.NaN stop skip", "mend: set Options.NaN to stop"}},
		{"a model", func(*Task[points], *Options) {}, func(task *Task[points], _ *Options) {
			b := &nn.Build{}
			task.Model = &line{nn.NewLinear(b, 1, 9), nn.NewLinear(b, 9, 1)}
		}, []string{"tensor.in.bias float32 [8] float32 [9]", "in 2 more tensors too", "mend: build the same model on all ranks", "-run.model"}},
		{"a frozen parameter", func(*Task[points], *Options) {}, func(task *Task[points], _ *Options) { task.Model.(*line).In.Bias.Frozen = true },
			[]string{"tensor.in.bias float32 [8] frozen float32 [8]"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFitting(t)
			f.set = func(rank int, task *Task[points], o *Options) {
				if rank == 1 {
					tt.then(task, o)
				} else {
					tt.first(task, o)
				}
			}
			told, _ := f.run(t, 3)
			checkLikeness(t, f, told, tt.rows)
		})
	}
}

// checkLikeness checks the table and the errors of a run whose rank 1 differs.
func checkLikeness(t *testing.T, f *fitting, told []error, rows []string) {
	t.Helper()
	for rank, err := range told {
		if err == nil || !strings.Contains(err.Error(), "train fit: rank 1") || strings.Contains(err.Error(), "\n") || !errors.As(err, new(*errorfile.Final)) {
			t.Errorf("rank %d ended by %v", rank, err)
		}
	}
	if len(f.log.notices) != 1 || len(f.log.losses) > 0 {
		t.Fatalf("%d steps, notices %q", len(f.log.losses), f.log.notices)
	}
	table := strings.Join(strings.Fields(f.log.notices[0]), " ")
	for _, row := range rows {
		if without, ok := strings.CutPrefix(row, "-"); ok && strings.Contains(table, without) || !ok && !strings.Contains(table, row) {
			t.Errorf("want %q in\n%s", row, f.log.notices[0])
		}
	}
}

// TestLikenessOfMany: what most ranks have is expected of the others.
func TestLikenessOfMany(t *testing.T) {
	f := newFitting(t)
	f.set = func(rank int, _ *Task[points], o *Options) {
		o.Recipe = json.RawMessage(fmt.Sprintf(`{"depth":%d}`, []int{3, 4, 4, 4, 5}[rank]))
	}
	_, err := f.run(t, 5)
	table := strings.Join(strings.Fields(strings.Join(f.log.notices, "")), " ")
	for _, want := range []string{"setting.depth 4 3", "setting.depth 4 5"} {
		if !strings.Contains(table, want) {
			t.Errorf("no %q in\n%v", want, f.log.notices)
		}
	}
	if err == nil || !strings.Contains(err.Error(), "rank 0") {
		t.Errorf("the job ended by %v", err)
	}
}

// TestLikenessOfData: a file of the same name and size with another content is named.
func TestLikenessOfData(t *testing.T) {
	dirs := [2]string{t.TempDir(), t.TempDir()}
	for i, dir := range dirs {
		for k := range 8 { // of some files the text for validation is made
			text := strings.Repeat(fmt.Sprintf("here is a %d and\n", i), 2000)
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("f%d.txt", k)), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	l := newLog()
	c := tiny(t, "")
	err := dist.Spawn(t.Context(), 2, func(ctx context.Context, g *dist.Group) error {
		mine := c
		mine.Data = dirs[g.Rank()]
		return LM(ctx, g, mine, nil, l)
	})
	if err == nil || !strings.Contains(err.Error(), "other data or flags than most ranks: data.f") || !strings.Contains(strings.Join(l.notices, ""), "run.setting.data") {
		t.Fatalf("another directory: %v", err)
	}
	var texts [2]map[string]string
	for i, dir := range dirs {
		corpus, err := data.OpenCorpus(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		if texts[i], err = corpus.Train.Contents(t.Context()); err != nil || len(texts[i]) < 4 {
			t.Fatal(texts[i], err)
		}
	}
	var file string
	for name, sum := range texts[0] {
		if file = name; texts[1][name] == sum || texts[1][name] == "" {
			t.Errorf("%s: %s and %s", name, sum, texts[1][name])
		}
	}
	texts[1] = maps.Clone(texts[0])
	texts[1][file] = "34000 bytes, checksum 00000000"
	f := newFitting(t)
	f.set = func(rank int, task *Task[points], _ *Options) {
		task.Contents = func(context.Context) (map[string]string, error) { return texts[rank%2], nil }
	}
	told, _ := f.run(t, 3)
	checkLikeness(t, f, told, []string{"run.data." + file + " " + texts[0][file] + " " + texts[1][file], "mend: copy " + file + " of the data from another node", "-run.data "})
}

// TestContentsOfLargeFiles: of a large file some blocks are read, the first and the last among
// them, and of many files some.
func TestContentsOfLargeFiles(t *testing.T) {
	dir := t.TempDir()
	big := []byte(strings.Repeat("0123456789abcdef\n", 100_000))
	contents := func() map[string]string {
		if err := os.WriteFile(filepath.Join(dir, "big.txt"), big, 0o600); err != nil {
			t.Fatal(err)
		}
		corpus, err := data.OpenCorpus(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		got, err := corpus.Train.Contents(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	was := contents()
	var found []bool
	for _, at := range []int{0, len(big) / 3, len(big) - 2} {
		old := big[at]
		big[at] = 'x'
		found = append(found, contents()["big.txt"] != was["big.txt"])
		big[at] = old
	}
	if !found[0] || !found[2] || contents()["big.txt"] != was["big.txt"] || !slices.Contains(found, true) {
		t.Errorf("changes at the beginning, within and at the end are found: %v", found)
	}
}

// TestContentsOfRecords: another record in one of several files is named by its file, also where two
// directories have a file of that name.
func TestContentsOfRecords(t *testing.T) {
	dir := t.TempDir()
	contents := func(last string) map[string]string {
		for name, text := range map[string]string{"a/x.jsonl": "{\"text\":\"one\"}\n", "b/x.jsonl": "{\"text\":\"" + last + "\"}\n", "y.jsonl": "{\"text\":\"three\"}\n"} {
			if err := errors.Join(os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o700), os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		set, err := records.Open(t.Context(), dir, records.Options{Cache: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		defer set.Close()
		got, err := contentsOf(set)(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	was, is := contents("two"), contents("2wo")
	for name := range was {
		if differs := was[name] != is[name]; differs != (name == "1 x.jsonl") {
			t.Errorf("%s: %q, then %q", name, was[name], is[name])
		}
	}
	if len(was) != 3 || len(is) != 3 {
		t.Errorf("%d and %d files, want 3", len(was), len(is))
	}
}
