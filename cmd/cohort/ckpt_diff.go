// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cohort-ml/cohort/checkpoint/anyformat"
	"github.com/cohort-ml/cohort/checkpoint/safetensors"
	"github.com/cohort-ml/cohort/internal/visible"
)

func newCkptDiffCommand() *cobra.Command {
	var asJSON, all bool
	var section string
	var tolerance float64
	cmd := &cobra.Command{
		Use:   "diff A B",
		Short: "Compare the tensors of two checkpoints",
		Long: `Compare two checkpoints of any format, tensor by tensor. For each tensor that differs:

  largest   the largest difference of two elements
  relative  the norm of the difference over the norm of A
  changed   the part of the elements that differ
  at        the place of the largest difference

The command also names tensors that only one of the two has, and tensors of other dtypes or
shapes. Other dtypes are compared by their values. Two NaN are equal. The exit code is 0 if
the checkpoints have the same tensors with the same values, and 3 if not. With
--tolerance, tensors with a relative difference up to it count as the same, also those of
another dtype.`,
		Example: `  cohort ckpt diff out/lm/step-00000100 out/lm
  cohort ckpt diff --tolerance 1e-3 model.safetensors quantized/`,
		Args: numArgs(2, "two checkpoints"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !(tolerance >= 0) {
				return usageError{fmt.Errorf("ckpt diff: --tolerance %g: want a number from 0 on", tolerance)}
			}
			var in [2]*anyformat.Input
			for i, arg := range args {
				var err error
				if in[i], err = openInput(cmd, arg); err != nil {
					return err
				}
				defer in[i].Close()
			}
			names, err := commonSections(in, section)
			if err != nil {
				return err
			}
			bar := newProgressBar(cmd.ErrOrStderr())
			defer bar.end()
			var found []sectionDifference
			for _, name := range names {
				a, _ := in[0].Section(name) // commonSections has found both
				b, _ := in[1].Section(name)
				d, err := anyformat.Compare(cmd.Context(), a.Source, b.Source, bar.show)
				if err != nil {
					return err
				}
				found = append(found, newSectionDifference(name, d, tolerance))
			}
			bar.end()
			if asJSON {
				err = printJSON(cmd.OutOrStdout(), map[string]any{"a": in[0].Where, "b": in[1].Where, "sections": found})
			} else {
				var b strings.Builder
				for _, s := range found {
					s.write(&b, all, helpWidth(cmd.OutOrStdout()))
				}
				_, err = io.WriteString(cmd.OutOrStdout(), b.String())
			}
			if err != nil {
				return err
			}
			if slices.ContainsFunc(found, func(s sectionDifference) bool { return !s.Equal }) {
				return answerError{fmt.Errorf("%s and %s differ", in[0].Where, in[1].Where)}
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	cmd.Flags().BoolVar(&all, "all", false, "print all tensors that differ, not only the 20 that differ most")
	cmd.Flags().StringVar(&section, "section", "", "compare only the section of this `NAME`, such as model (default: those that both have)")
	cmd.Flags().Float64Var(&tolerance, "tolerance", 0, "relative difference up to which tensors are the same")
	return cmd
}

// commonSections returns the sections that two inputs have, in the order of the first.
func commonSections(in [2]*anyformat.Input, only string) ([]string, error) {
	if only != "" {
		for _, i := range in {
			if _, err := i.Section(only); err != nil {
				return nil, usageError{err}
			}
		}
		return []string{only}, nil
	}
	var names []string
	for _, s := range in[0].Sections {
		if _, err := in[1].Section(s.Name); err == nil {
			names = append(names, s.Name)
		}
	}
	if len(names) == 0 {
		_, err := in[1].Section(in[0].Sections[0].Name)
		return nil, errors.Join(errors.New("the checkpoints have no section in common"), err)
	}
	return names, nil
}

// number is a float for JSON, which has no infinity: that is null.
type number float64

func (n number) MarshalJSON() ([]byte, error) {
	if math.IsInf(float64(n), 0) || math.IsNaN(float64(n)) {
		return []byte("null"), nil
	}
	return fmt.Appendf(nil, "%g", float64(n)), nil
}

// tensorDifference is a tensor that differs, in JSON.
type tensorDifference struct {
	Name      string    `json:"name"`
	DTypes    [2]string `json:"dtypes"`
	Shapes    [2][]int  `json:"shapes"`
	Elements  int64     `json:"elements"`
	Changed   int64     `json:"changed"`
	Largest   number    `json:"largest"`  // null: infinite
	Relative  number    `json:"relative"` // null: infinite
	At        []int     `json:"at"`
	Tolerated bool      `json:"tolerated"`
	found     anyformat.TensorDifference
}

// sectionDifference is what differs in a section, in JSON.
type sectionDifference struct {
	Section   string             `json:"section"`
	Equal     bool               `json:"equal"`
	NumEqual  int                `json:"equal_tensors"`
	OnlyA     []string           `json:"only_a"`
	OnlyB     []string           `json:"only_b"`
	Differing []tensorDifference `json:"differing"`
}

func newSectionDifference(section string, d *anyformat.Difference, tolerance float64) sectionDifference {
	names := func(infos []safetensors.Info) []string {
		list := []string{}
		for _, i := range infos {
			list = append(list, i.Name)
		}
		return list
	}
	s := sectionDifference{Section: section, NumEqual: d.NumEqual, OnlyA: names(d.OnlyA), OnlyB: names(d.OnlyB), Differing: []tensorDifference{}}
	s.Equal = len(s.OnlyA)+len(s.OnlyB) == 0
	for _, t := range d.Tensors {
		j := tensorDifference{Name: t.Name, DTypes: [2]string{t.DTypes[0].String(), t.DTypes[1].String()}, Shapes: t.Shapes,
			Elements: t.NumElements, Changed: t.NumDiffer, Largest: number(t.Largest), Relative: number(t.Relative), found: t}
		if t.NumDiffer > 0 {
			j.At = anyformat.Index(t.At, t.Shapes[0])
		}
		j.Tolerated = tolerance > 0 && !t.Misshapen() && !t.Opaque && t.Relative <= tolerance
		s.Equal = s.Equal && j.Tolerated
		s.Differing = append(s.Differing, j)
	}
	return s
}

func (s sectionDifference) write(b *strings.Builder, all bool, width int) {
	numTolerated := 0
	for _, t := range s.Differing {
		if t.Tolerated {
			numTolerated++
		}
	}
	fmt.Fprintf(b, "%s: %s, %d differ", visible.Text(s.Section), plural(s.NumEqual, "equal tensor"), len(s.Differing))
	if numTolerated > 0 {
		fmt.Fprintf(b, " (%d within the tolerance)", numTolerated)
	}
	fmt.Fprintf(b, ", %d only in A, %d only in B\n", len(s.OnlyA), len(s.OnlyB))
	most := 20
	if all {
		most = math.MaxInt
	}
	list := slices.Clone(s.Differing)
	slices.SortStableFunc(list, func(x, y tensorDifference) int { return cmp.Compare(y.order(), x.order()) })
	rows := [][]string{{"", "largest", "relative", "changed", "at"}}
	for i, t := range list {
		if i == most {
			break
		}
		rows = append(rows, t.row())
	}
	if len(rows) > 1 {
		writeColumns(b, rows, width, 1, 2, 3)
	}
	if n := len(list) - most; n > 0 {
		fmt.Fprintf(b, "  and %d more (--all prints them)\n", n)
	}
	for _, only := range []struct {
		where string
		names []string
	}{{"A", s.OnlyA}, {"B", s.OnlyB}} {
		for i, name := range only.names {
			if i == most {
				fmt.Fprintf(b, "  and %d more only in %s (--all prints them)\n", len(only.names)-most, only.where)
				break
			}
			fmt.Fprintf(b, "  only in %s: %s\n", only.where, visible.Text(name))
		}
	}
}

// order is large for what differs most. What cannot be compared comes first.
func (t tensorDifference) order() float64 {
	if t.found.Misshapen() || t.found.Opaque {
		return math.Inf(1)
	}
	return t.found.Relative
}

func (t tensorDifference) row() []string {
	name, f := "  "+visible.Text(t.Name), t.found
	switch {
	case f.Misshapen():
		return []string{name + fmt.Sprintf(": %s in A, %s in B", inShape(f.Shapes[0]), inShape(f.Shapes[1])), "", "", "", ""}
	case f.DTypes[0] != f.DTypes[1]:
		name += fmt.Sprintf(" (%s, %s)", t.DTypes[0], t.DTypes[1])
	}
	if f.Opaque {
		return []string{name, "bytes", "", inPercent(f.NumDiffer, f.NumElements), ""}
	}
	at := ""
	if f.NumDiffer > 0 {
		at = inShape(t.At)
	}
	return []string{name, fmt.Sprintf("%.2g", f.Largest), fmt.Sprintf("%.2g", f.Relative), inPercent(f.NumDiffer, f.NumElements), at}
}

func inPercent(n, of int64) string {
	if of == 0 {
		return ""
	}
	p := 100 * float64(n) / float64(of)
	if n > 0 && p < 0.01 {
		return "<0.01 %"
	}
	return fmt.Sprintf("%.3g %%", p)
}
