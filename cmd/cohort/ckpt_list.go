// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/internal/visible"
)

func newCkptListCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "ls RUN",
		Short: "List the checkpoints of a run",
		Long: `List the checkpoints of a run, the newest first: step, age, size, the mesh of the ranks
that saved it, its metric, and the state. Damaged ones are listed with what is wrong, and
so is what saves left that did not end. Where ranks have each saved alone what they hold,
the state is parts, and the command says which ranks are missing and whether all tensors
are whole. It reads manifests and the sizes of files; cohort ckpt verify reads every byte.`,
		Example: "  cohort ckpt ls out/lm\n  cohort ckpt ls --json s3://bucket/lm",
		Args:    numArgs(1, "a run"),
		RunE: func(cmd *cobra.Command, args []string) error {
			run, err := locateRun(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			list, err := listRun(cmd.Context(), run)
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), list)
			}
			var b strings.Builder
			writeList(&b, list, time.Now(), helpWidth(cmd.OutOrStdout()))
			_, err = io.WriteString(cmd.OutOrStdout(), visible.Text(b.String()))
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON array with an object for each checkpoint")
	return cmd
}

// ckptListed is a checkpoint of a run, in JSON.
type ckptListed struct {
	Name    string             `json:"name"`
	Step    *int               `json:"step,omitempty"`
	State   string             `json:"state"` // good, damaged, unfinished, set aside or parts
	Problem string             `json:"problem,omitempty"`
	Time    *time.Time         `json:"time,omitempty"`
	Bytes   int64              `json:"bytes,omitempty"`
	Ranks   int                `json:"ranks,omitempty"`
	Mesh    []checkpoint.Axis  `json:"mesh,omitempty"`
	Metric  *checkpoint.Metric `json:"metric,omitempty"`
	Missing []int              `json:"missing_ranks,omitempty"` // that have written nothing
	Whole   bool               `json:"whole,omitempty"`         // of parts: whether all tensors are there
}

// listRun lists what is in a run.
func listRun(ctx context.Context, run storage.Storage) ([]ckptListed, error) {
	found, err := checkpoint.List(ctx, run)
	if err != nil {
		return nil, err
	}
	list := []ckptListed{}
	for _, f := range found {
		l := ckptListed{Name: f.Name, Step: &f.Step, State: string(f.Kind), Bytes: f.Bytes, Missing: f.Missing, Whole: f.Kind == checkpoint.Parts && f.Err == nil}
		if !f.Modified.IsZero() {
			l.Time = &f.Modified
		}
		if m := f.Manifest; m != nil {
			l.Ranks, l.Mesh, l.Metric = m.Ranks, m.Mesh, m.Metric
		}
		var damaged *checkpoint.DamagedError
		switch {
		case f.Kind == checkpoint.Stage:
			l.State = "unfinished"
		case l.Whole:
			l.Problem = "all tensors are whole: the next job completes it, and so does cohort ckpt merge"
		case f.Kind == checkpoint.Parts:
			l.Problem = "not whole: " + f.Err.Error()
			if len(f.Missing) > 0 {
				l.Problem += fmt.Sprintf("; nothing is there of %s", inRanks(f.Missing))
			}
		case errors.As(f.Err, &damaged):
			l.Problem = strings.TrimSpace(damaged.File + " " + damaged.Problem)
			if damaged.Err != nil {
				l.Problem += ": " + damaged.Err.Error()
			}
		}
		list = append(list, l)
	}
	return list, nil
}

// inRanks names ranks, of many the first ones.
func inRanks(ranks []int) string {
	const most = 8
	switch {
	case len(ranks) == 1:
		return fmt.Sprintf("rank %d", ranks[0])
	case len(ranks) > most:
		return fmt.Sprintf("ranks %s and %d more", inNumbers(ranks[:most]), len(ranks)-most)
	}
	return "ranks " + inNumbers(ranks)
}

// inMesh is a mesh for people.
func inMesh(axes []checkpoint.Axis, ranks int) string {
	var parts []string
	for _, a := range axes {
		if a.Size > 1 {
			parts = append(parts, fmt.Sprintf("%s %d", a.Name, a.Size))
		}
	}
	switch {
	case len(parts) > 0:
		return strings.Join(parts, " × ")
	case ranks > 0:
		return plural(ranks, "rank")
	}
	return ""
}

func inMetric(m *checkpoint.Metric) string {
	if m == nil {
		return ""
	}
	return fmt.Sprintf("%s %.4g", m.Name, m.Value)
}

// inAge is the time since then for people.
func inAge(since time.Duration) string {
	switch {
	case since < time.Minute:
		return fmt.Sprintf("%d s", max(int(since.Seconds()), 0))
	case since < time.Hour:
		return fmt.Sprintf("%d min", int(since.Minutes()))
	case since < 48*time.Hour:
		return fmt.Sprintf("%d h", int(since.Hours()))
	}
	return fmt.Sprintf("%d days", int(since.Hours()/24))
}

func writeList(b *strings.Builder, list []ckptListed, now time.Time, width int) {
	if len(list) == 0 {
		b.WriteString("no checkpoint\n")
		return
	}
	rows := [][]string{{"step", "age", "size", "mesh", "metric", "state"}}
	for _, l := range list {
		row := []string{l.Name, "", "", inMesh(l.Mesh, l.Ranks), inMetric(l.Metric), l.State}
		if l.Step != nil {
			row[0] = fmt.Sprint(*l.Step)
		}
		if l.Time != nil {
			row[1] = inAge(now.Sub(*l.Time))
		}
		if l.Bytes > 0 {
			row[2] = inBytes(l.Bytes)
		}
		rows = append(rows, row)
	}
	writeColumns(b, rows, width, 1, 2)
	for _, l := range list {
		if l.Problem != "" {
			for i, line := range wrap(l.Name+": "+l.Problem, width) {
				if i > 0 {
					line = "  " + line
				}
				b.WriteString(line + "\n")
			}
		}
	}
}
