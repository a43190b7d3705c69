// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/internal/config"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// A run whose data have changed cannot go on: the order of its samples was that of the
// old ones. Another run can begin with its weights (--init-from). What has a name in
// both, classes and columns, is carried over by it.

// source is the run that another one begins with.
type source struct {
	dir string // as the user gave it
	ck  *checkpoint.Checkpoint
}

// openSource finds the weights that a run of a task begins with, and reads what the model
// is like into was. A run that goes on has them already.
func openSource(ctx context.Context, task string, c SaveConfig, dir string, saved *SavedRun, was any, notice func(text string)) (source, error) {
	fail := func(err error) (source, error) { return source{}, fmt.Errorf("train %s: --init-from: %w", task, err) }
	s := source{dir: dir}
	if saved != nil {
		s.ck = saved.Checkpoint
	} else {
		from, err := c.open("init-from", dir)
		if err != nil {
			return fail(err)
		}
		at, err := findModel(ctx, from, notice)
		if err != nil {
			return fail(err)
		}
		if got, err := at.task(); err != nil || got != task {
			if err == nil {
				err = fmt.Errorf("%s holds a model of train %s, not %s", at.path, got, task)
			}
			return fail(err)
		}
		s.ck = at.checkpoint
	}
	if err := s.ck.ReadJSON(configFile, was); err != nil {
		return fail(err)
	}
	return s, nil
}

// inherit gives a setting the value that the source's model has, where the user has
// given none; another one is an error.
func (s source) inherit(task string, f *config.Field, value any) error {
	was, from, old := f.Value(), f.From, f.Text()
	if err := f.Set(value, "the model's"); err != nil {
		return fmt.Errorf("train %s: --init-from: %s: %w", task, s.ck.Path, err)
	}
	if text := f.Text(); from != config.Default && text != old {
		_ = f.Set(plainValue(was), from)
		return fmt.Errorf("train %s: --%s is %s, the model in %s has %s: leave the flag out", task, f.Name, old, s.dir, text)
	}
	return nil
}

// plainValue makes of a field's value one as a file has it.
func plainValue(v any) any {
	switch v := v.(type) {
	case int:
		return int64(v)
	case []string:
		return listOf(v)
	}
	return v
}

// listOf makes a list as a file has it.
func listOf[T any](values []T) []any {
	list := make([]any, len(values))
	for i, v := range values {
		list[i] = fmt.Sprint(v)
	}
	return list
}

// carried says where a tensor's values come from: a tensor of the source, and which of
// its rows and columns; nil is all, as they are. A row of -1 stays as it was made, a
// column of -1 becomes 0. No name: all stays as it was made.
type carried struct {
	from       string
	rows, cols []int
}

// carry fills the tensors of a model with those of another.
func carry(into, from nn.NamedTensors, plan func(name string) carried) error {
	source := make(map[string]*tensor.Tensor)
	for _, s := range from {
		source[s.Name] = s.Tensor
	}
	for _, s := range into {
		p := plan(s.Name)
		if p.from == "" {
			continue
		}
		was := source[p.from]
		if was == nil || was.DType() != s.Tensor.DType() {
			return fmt.Errorf("the model has no tensor %s of %v", p.from, s.Tensor.DType())
		}
		if p.rows == nil && p.cols == nil {
			if !slices.Equal(was.Shape(), s.Tensor.Shape()) {
				return fmt.Errorf("tensor %s is %v, that of the model %v", s.Name, s.Tensor.Shape(), was.Shape())
			}
			copy(s.Tensor.Buffer().Data, was.Buffer().Data)
			runtime.KeepAlive(was)
			continue
		}
		if err := carryParts(s.Tensor, was, p); err != nil {
			return fmt.Errorf("tensor %s: %w", s.Name, err)
		}
	}
	return nil
}

// carryParts copies rows or columns of float32 tensors: [rows, …] or [rows, columns].
func carryParts(into, from *tensor.Tensor, p carried) error {
	shape, had := into.Shape(), from.Shape()
	if len(shape) != len(had) || p.cols != nil && len(shape) != 2 {
		return fmt.Errorf("it is %v, that of the model %v", shape, had)
	}
	width, wide := into.NumElems()/shape[0], from.NumElems()/had[0]
	rows, cols := p.rows, p.cols
	if rows == nil {
		rows = counting(shape[0])
	}
	if cols == nil {
		cols = counting(width)
	}
	if len(rows) != shape[0] || len(cols) != width || slices.Max(rows) >= had[0] || slices.Max(cols) >= wide || p.rows == nil && had[0] != shape[0] || p.cols == nil && wide != width {
		return fmt.Errorf("it is %v, that of the model %v", shape, had)
	}
	from.WithFloat32s(func(old []float32) {
		into.WithFloat32s(func(v []float32) {
			for i, r := range rows {
				for j, c := range cols {
					switch {
					case r < 0:
					case c < 0:
						v[i*width+j] = 0
					default:
						v[i*width+j] = old[r*wide+c]
					}
				}
			}
		})
	})
	return nil
}

func counting(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

// places says for each of names where it stands among old; -1 for nowhere.
func places(names, old []string) []int {
	known := make(map[string]int, len(old))
	for i, name := range old {
		known[name] = i
	}
	at := make([]int, len(names))
	for i, name := range names {
		at[i] = -1
		if k, ok := known[name]; ok {
			at[i] = k
		}
	}
	return at
}

// matched says which names of two lists are carried over, which begin anew and which
// are left out.
func matched(kind string, names, old []string) string {
	without := func(of []string, at []int) (names []string) {
		for i, k := range at {
			if k < 0 {
				names = append(names, of[i])
			}
		}
		return names
	}
	anew, left := without(names, places(names, old)), without(old, places(old, names))
	text := fmt.Sprintf("%d of %d %s are carried over by name", len(names)-len(anew), len(names), kind)
	if len(anew) > 0 {
		text += fmt.Sprintf(", anew are %s", few(anew))
	}
	if len(left) > 0 {
		text += fmt.Sprintf(", left out are the model's %s", few(left))
	}
	return text
}

// says is the notice of what a run begins with.
func (s source) says(parts ...string) string {
	return fmt.Sprintf("begins with the weights of step %d in %s: %s; the optimizer, its rates and the order of the samples begin anew",
		s.ck.Step, s.ck.Path, strings.Join(parts, "; "))
}

// carryOver is what a run whose data have changed can do, in the words of an error.
func carryOver(task, out, data string) string {
	where := ""
	if data != "" {
		where = " --data " + argument(data)
	}
	return fmt.Sprintf("begin another run with its weights: cohort train %s%s --init-from %s --out %s", task, where, argument(out), argument(out+"-2"))
}
