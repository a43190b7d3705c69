// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/anyformat"
	"github.com/cohort-ml/cohort/internal/visible"
)

// verdict is what verify says of a checkpoint, in JSON.
type verdict struct {
	Where  string         `json:"where"`
	Kind   anyformat.Kind `json:"kind"`
	Good   bool           `json:"good"`
	Bytes  int64          `json:"bytes"`  // that were read
	Sums   bool           `json:"sums"`   // whether the format has checksums
	Damage []damage       `json:"damage"` // all that was found
}

type damage struct {
	File    string `json:"file"`
	Tensor  string `json:"tensor,omitempty"`
	Problem string `json:"problem"`
}

func newCkptVerifyCommand() *cobra.Command {
	var asJSON, all bool
	cmd := &cobra.Command{
		Use:   "verify CKPT",
		Short: "Read every byte of a checkpoint and name all damage",
		Long: `Read every byte of a checkpoint. Those of a Cohort checkpoint are compared with their
checksums: for all damage the command names file, tensor and byte, and goes on with
what can be read. Other formats have no checksums; there the command checks that files
are well formed and whole, and that all tensors can be read. The exit code is 3 if there
is damage.`,
		Example: `  cohort ckpt verify out/lm
  cohort ckpt verify --all --json out/lm`,
		Args: numArgs(1, "a checkpoint"),
		RunE: func(cmd *cobra.Command, args []string) error {
			at, err := locate(args[0])
			if err != nil {
				return err
			}
			verdicts, err := verify(cmd, at, all)
			if err != nil {
				return err
			}
			if asJSON {
				err = printJSON(cmd.OutOrStdout(), verdicts)
			} else {
				_, err = io.WriteString(cmd.OutOrStdout(), visible.Text(inWordsOf(verdicts)))
			}
			if err != nil {
				return err
			}
			var bad []string
			for _, v := range verdicts {
				if !v.Good {
					bad = append(bad, v.Where)
				}
			}
			if len(bad) > 0 {
				return answerError{fmt.Errorf("damaged: %s", strings.Join(bad, ", "))}
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON array with an object for each checkpoint")
	cmd.Flags().BoolVar(&all, "all", false, "verify all checkpoints of a run, not only the newest")
	return cmd
}

// verify verifies what lies at a location.
func verify(cmd *cobra.Command, at anyformat.Location, all bool) ([]verdict, error) {
	ctx := cmd.Context()
	kind, err := anyformat.Recognize(ctx, at)
	if err != nil {
		return nil, err
	}
	bar := newProgressBar(cmd.ErrOrStderr())
	defer bar.end()
	switch kind {
	case anyformat.Checkpoint:
		v, err := examine(ctx, at, "", bar.show)
		return []verdict{v}, err
	case anyformat.Run:
		steps, err := checkpoint.Steps(ctx, at.Inside)
		if err != nil {
			return nil, err
		}
		if len(steps) == 0 {
			return nil, &anyformat.UnknownError{Location: at.Text, Problem: "has no checkpoint, only what saves left that did not end"}
		}
		if !all {
			steps = steps[:1]
		}
		var verdicts []verdict
		for _, step := range steps {
			v, err := examine(ctx, at, checkpoint.StepName(step), bar.show)
			if errors.Is(err, checkpoint.ErrNone) {
				continue // being written, in a store that cannot rename
			}
			if err != nil {
				return nil, err
			}
			verdicts = append(verdicts, v)
		}
		return verdicts, nil
	}
	v, err := readAll(ctx, at, kind, bar.show)
	return []verdict{v}, err
}

// examine verifies a checkpoint of Cohort.
func examine(ctx context.Context, at anyformat.Location, name string, progress func(done, total int64)) (verdict, error) {
	v := verdict{Where: at.Text, Kind: anyformat.Checkpoint, Sums: true, Damage: []damage{}}
	if name != "" {
		v.Where = strings.TrimSuffix(at.Text, "/") + "/" + name
	}
	_, err := checkpoint.Examine(ctx, at.Inside, name, func(done, total int64) { v.Bytes = done; progress(done, total) }, func(d *checkpoint.DamagedError) {
		text := d.Problem
		if d.Err != nil {
			text += ": " + d.Err.Error()
		}
		v.Damage = append(v.Damage, damage{d.File, d.Tensor, text})
	})
	v.Good = len(v.Damage) == 0
	return v, err
}

// readAll verifies a format that Cohort does not make, which may have no checksums. What cannot be opened or read is damage.
func readAll(ctx context.Context, at anyformat.Location, kind anyformat.Kind, progress func(done, total int64)) (verdict, error) {
	v := verdict{Where: at.Text, Kind: kind, Damage: []damage{}}
	in, err := anyformat.Open(ctx, at)
	var access *anyformat.AccessError
	var unknown *anyformat.UnknownError
	switch {
	case errors.As(err, &access) || errors.As(err, &unknown): // which says nothing about its bytes
		return v, err
	case err != nil:
		v.Damage = append(v.Damage, damage{Problem: err.Error()})
		return v, nil
	}
	defer in.Close()
	var total int64
	for _, s := range in.Sections {
		for _, info := range s.Source.Infos() {
			total += info.NumBytes()
		}
	}
	for _, s := range in.Sections {
		for _, info := range s.Source.Infos() {
			err := anyformat.Pieces(ctx, s.Source, info, func(b []byte, _ int64) error {
				v.Bytes += int64(len(b))
				progress(v.Bytes, total)
				return nil
			})
			if ctx.Err() != nil {
				return v, context.Cause(ctx)
			}
			if err != nil {
				v.Damage = append(v.Damage, damage{Tensor: info.Name, Problem: err.Error()})
			}
		}
	}
	for name, err := range in.Refused {
		v.Damage = append(v.Damage, damage{Tensor: name, Problem: err.Error()})
	}
	if in.CheckSums != nil {
		v.Sums, err = in.CheckSums(ctx, func(part string, err error) {
			v.Damage = append(v.Damage, damage{File: part, Problem: err.Error()})
		})
		if err != nil {
			return v, err
		}
	}
	v.Good = len(v.Damage) == 0
	return v, nil
}

func inWordsOf(verdicts []verdict) string {
	var b strings.Builder
	for _, v := range verdicts {
		switch {
		case v.Good && v.Sums:
			fmt.Fprintf(&b, "%s: good, %s agree with their checksums\n", v.Where, inBytes(v.Bytes))
		case v.Good:
			fmt.Fprintf(&b, "%s: whole, %s of tensors can be read; this %s has no checksums\n", v.Where, inBytes(v.Bytes), v.Kind)
		default:
			fmt.Fprintf(&b, "%s: damaged\n", v.Where)
		}
		for _, d := range v.Damage {
			b.WriteString("  ")
			if d.File != "" {
				b.WriteString(d.File + " ")
			}
			if d.Tensor != "" && d.File != "" {
				fmt.Fprintf(&b, "(tensor %s) ", d.Tensor)
			}
			b.WriteString(d.Problem + "\n")
		}
	}
	return b.String()
}
