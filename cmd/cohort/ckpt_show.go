// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/anyformat"
	"github.com/cohort-ml/cohort/checkpoint/safetensors"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/internal/visible"
)

func newCkptShowCommand() *cobra.Command {
	var asJSON, all bool
	var section string
	var depth int
	cmd := &cobra.Command{
		Use:   "show CKPT",
		Short: "Show the tensors of a checkpoint, as a tree of modules",
		Long: `Show what a checkpoint holds: where it comes from, and for each section (the model,
the optimizer) the tensors with dtype, shape and size, as a tree of modules with the
sums of their bytes. Modules that follow each other by number and have the same
tensors are shown once; --all shows each. Of an optimizer's state only the kinds are
shown, unless --section or --depth asks for more. Where tensors lie in boxes of several
ranks, the tree has their number, the shape of the first, and the axes that cut: 4 × [8,
64] fsdp:0 is a tensor in four boxes, cut by the axis fsdp along dim 0.`,
		Example: `  cohort ckpt show out/lm
  cohort ckpt show --section optimizer out/lm
  cohort ckpt show --json model.safetensors`,
		Args: numArgs(1, "a checkpoint"),
		RunE: func(cmd *cobra.Command, args []string) error {
			in, err := openInput(cmd, args[0])
			if err != nil {
				return err
			}
			defer in.Close()
			if cmd.Flags().Changed("depth") && depth < 1 {
				return usageError{fmt.Errorf("ckpt show: --depth %d: want 1 or more", depth)}
			}
			sections := in.Sections
			if section != "" {
				s, err := in.Section(section)
				if err != nil {
					return usageError{err}
				}
				sections = []anyformat.Section{s}
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), describeInput(in, sections))
			}
			limit := func(name string) int {
				switch {
				case depth > 0:
					return depth
				case name == anyformat.OptimizerSection && section == "" && !all:
					return 1
				}
				return math.MaxInt
			}
			var b strings.Builder
			showInput(&b, in, sections, limit, all, helpWidth(cmd.OutOrStdout()))
			_, err = io.WriteString(cmd.OutOrStdout(), b.String())
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	cmd.Flags().BoolVar(&all, "all", false, "show every module, also those that are alike")
	cmd.Flags().StringVar(&section, "section", "", "show only the section of this `NAME`, such as model")
	cmd.Flags().IntVar(&depth, "depth", 0, "depth of the modules that are shown (default: all)")
	return cmd
}

// showProvenance says where a checkpoint of Cohort comes from.
func showProvenance(b *strings.Builder, in *anyformat.Input) {
	if in.Checkpoint == nil {
		return
	}
	m := in.Checkpoint.Manifest()
	if m.Version == 1 {
		b.WriteString("an old checkpoint, of version 1\n")
		return
	}
	fmt.Fprintf(b, "saved %s by %s", m.Time.Local().Format("2006-01-02 15:04:05"), visible.Text(m.Program))
	if mesh := inMesh(m.Mesh, m.Ranks); mesh != "" {
		fmt.Fprintf(b, " on %s", visible.Text(mesh))
	}
	b.WriteString("\n")
	if m.Metric != nil {
		fmt.Fprintf(b, "metric: %s\n", visible.Text(inMetric(m.Metric)))
	}
	if names := slices.Sorted(maps.Keys(m.Values)); len(names) > 0 {
		fmt.Fprintf(b, "values: %s\n", visible.Text(strings.Join(names, ", ")))
	}
}

// placementsOf returns how the axes of the mesh cut a tensor of a Cohort checkpoint, by section
// and name.
func placementsOf(in *anyformat.Input) func(section, name string) []string {
	type key struct{ section, tensor string }
	found := map[key][]string{}
	if in.Checkpoint != nil {
		for _, s := range in.Checkpoint.Manifest().Sections {
			for _, t := range s.Tensors {
				found[key{s.Name, t.Name}] = t.Placements
			}
		}
	}
	return func(section, name string) []string { return found[key{section, name}] }
}

// boxed is a source whose tensors lie in boxes.
type boxed interface{ Boxes(name string) []mesh.Box }

func boxesOf(s anyformat.Section, name string) []mesh.Box {
	if b, ok := s.Source.(boxed); ok {
		return b.Boxes(name)
	}
	return nil
}

// shownTensor is a tensor in the JSON of ckpt show.
type shownTensor struct {
	Name  string    `json:"name"`
	DType string    `json:"dtype"`
	Shape []int     `json:"shape"`
	Bytes int64     `json:"bytes"`
	Boxes []boxJSON `json:"boxes,omitempty"`
	// Placements say how the axes of the mesh cut the tensor, in the order of the axes.
	Placements []string `json:"placements,omitempty"`
}

type boxJSON struct {
	Start []int `json:"start"`
	Shape []int `json:"shape"`
}

type shownSection struct {
	Name     string        `json:"name"`
	Bytes    int64         `json:"bytes"`
	Elements int64         `json:"elements"`
	Tensors  []shownTensor `json:"tensors"`
}

type shownFile struct {
	Name  string `json:"name"`
	Bytes int64  `json:"bytes"`
}

type shownInput struct {
	Kind     anyformat.Kind `json:"kind"`
	Where    string         `json:"where"`
	Step     *int           `json:"step,omitempty"`
	Sections []shownSection `json:"sections"`
	Files    []shownFile    `json:"files"`
	// Refused says why tensors cannot be read, by name.
	Refused map[string]string  `json:"refused,omitempty"`
	Program string             `json:"program,omitempty"`
	Time    *time.Time         `json:"time,omitempty"`
	Ranks   int                `json:"ranks,omitempty"`
	Mesh    []checkpoint.Axis  `json:"mesh,omitempty"`
	Metric  *checkpoint.Metric `json:"metric,omitempty"`
	Values  []string           `json:"values,omitempty"` // their names
}

func describeInput(in *anyformat.Input, sections []anyformat.Section) shownInput {
	out := shownInput{Kind: in.Kind, Where: in.Where, Files: []shownFile{}}
	if in.Step >= 0 {
		out.Step = &in.Step
	}
	if c := in.Checkpoint; c != nil {
		m := c.Manifest()
		out.Program, out.Ranks, out.Mesh, out.Metric = m.Program, m.Ranks, m.Mesh, m.Metric
		out.Values = slices.Sorted(maps.Keys(m.Values))
		if !m.Time.IsZero() {
			out.Time = &m.Time
		}
	}
	placements := placementsOf(in)
	for _, s := range sections {
		t := shownSection{Name: s.Name, Tensors: []shownTensor{}}
		for _, info := range s.Source.Infos() {
			shown := shownTensor{info.Name, info.DType.String(), info.Shape, info.NumBytes(), nil, placements(s.Name, info.Name)}
			for _, b := range boxesOf(s, info.Name) {
				shown.Boxes = append(shown.Boxes, boxJSON{b.Start, b.Shape})
			}
			t.Bytes += shown.Bytes
			t.Elements += numElements(info)
			t.Tensors = append(t.Tensors, shown)
		}
		out.Sections = append(out.Sections, t)
	}
	for name, err := range in.Refused {
		if out.Refused == nil {
			out.Refused = map[string]string{}
		}
		out.Refused[name] = err.Error()
	}
	for _, f := range in.Files {
		out.Files = append(out.Files, shownFile(f))
	}
	return out
}

func numElements(info safetensors.Info) int64 {
	return info.NumBytes() * 8 / int64(max(info.DType.NumBits(), 1))
}

// boxesInWords says how many boxes a tensor lies in, of which shape the first is, and which dim
// each axis cuts: "4 × [8, 64] fsdp:0".
func boxesInWords(boxes []mesh.Box, axes []checkpoint.Axis, placements []string) string {
	if len(boxes) < 2 {
		return ""
	}
	text := fmt.Sprintf("%d × %s", len(boxes), inShape(boxes[0].Shape))
	for i, p := range placements {
		if _, inside, ok := strings.Cut(strings.TrimSuffix(p, ")"), "Shard("); ok && i < len(axes) && axes[i].Size > 1 {
			dim, _, _ := strings.Cut(inside, ",")
			text += " " + visible.Text(axes[i].Name) + ":" + dim
		}
	}
	return text
}

func showInput(b *strings.Builder, in *anyformat.Input, sections []anyformat.Section, depth func(section string) int, all bool, width int) {
	fmt.Fprintf(b, "%s: %s", visible.Text(in.Where), in.Kind)
	if in.Step >= 0 {
		fmt.Fprintf(b, ", step %d", in.Step)
	}
	var size int64
	for _, f := range in.Files {
		size += f.Bytes
	}
	fmt.Fprintf(b, ", %s in %s\n", inBytes(size), plural(len(in.Files), "file"))
	if in.NumObjects > 0 {
		fmt.Fprintf(b, "%s that are no tensors\n", plural(in.NumObjects, "value"))
	}
	showProvenance(b, in)
	placements := placementsOf(in)
	var axes []checkpoint.Axis
	if in.Checkpoint != nil {
		axes = in.Checkpoint.Manifest().Mesh
	}
	for _, s := range sections {
		var bytes, elements int64
		infos := s.Source.Infos()
		for _, info := range infos {
			bytes += info.NumBytes()
			elements += numElements(info)
		}
		fmt.Fprintf(b, "\n%s: %s, %s, %s\n", visible.Text(s.Name), plural(len(infos), "tensor"), inElements(elements), inBytes(bytes))
		tree := newModuleTree(infos, func(name string) string {
			return boxesInWords(boxesOf(s, name), axes, placements(s.Name, name))
		})
		var rows [][]string
		for _, l := range tree.lines(1, depth(s.Name), all) {
			rows = append(rows, []string{l.name, l.dtype, l.shape, l.boxes, l.size})
		}
		writeColumns(b, rows, width, 4)
	}
	if len(in.Refused) > 0 {
		fmt.Fprintf(b, "\n%s cannot be read:\n", plural(len(in.Refused), "tensor"))
		for _, name := range slices.Sorted(maps.Keys(in.Refused)) {
			fmt.Fprintf(b, "  %s\n", visible.Text(in.Refused[name].Error()))
		}
	}
}

func inElements(n int64) string {
	if n == 1 {
		return "1 element"
	}
	return strings.TrimSpace(inCounts(n)) + " elements"
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
