// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/internal/visible"
)

func newCkptPruneCommand() *cobra.Command {
	var asJSON, yes, stages bool
	var older time.Duration
	var keep checkpoint.Retention
	cmd := &cobra.Command{
		Use:   "prune RUN",
		Short: "Remove old checkpoints of a run by rules",
		Long: `Say which checkpoints of a run would be removed by the rules given, and with --yes
remove them. A checkpoint stays if any rule wants it. Damaged ones do not count among
those that stay. What later checkpoints share with removed ones stays with them.

With --stages the command removes what killed saves have left, if nothing was written
to it for the time of --older. A directory is cleaned by the next save; a bucket is not,
because nobody can know there whether a save still writes.`,
		Example: `  cohort ckpt prune out/lm --keep 3
  cohort ckpt prune out/lm --keep 3 --keep-every 1000 --keep-best 2 --yes
  cohort ckpt prune s3://bucket/lm --stages --older 48h --yes`,
		Args: numArgs(1, "a run"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if stages {
				if keep != (checkpoint.Retention{}) {
					return usageError{errors.New("ckpt prune: --stages goes without --keep: checkpoints and stages are removed by one command each")}
				}
				if older < 0 {
					return usageError{fmt.Errorf("ckpt prune: --older is %v, want 0 or more", older)}
				}
				return pruneStages(cmd, args[0], older, yes, asJSON)
			}
			if cmd.Flags().Changed("older") {
				return usageError{errors.New("ckpt prune: --older needs --stages")}
			}
			if keep.Last < 1 || keep.Every < 0 || keep.Best < 0 {
				return usageError{errors.New("ckpt prune: want --keep 1 or more, and --keep-every and --keep-best from 0 on")}
			}
			run, err := locateRun(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			remove, err := keep.Plan(cmd.Context(), run)
			if err != nil {
				return err
			}
			steps, err := checkpoint.Steps(cmd.Context(), run)
			if err != nil {
				return err
			}
			stay := slices.DeleteFunc(slices.Clone(steps), func(s int) bool { return slices.Contains(remove, s) })
			if yes {
				if err := keep.Prune(cmd.Context(), run); err != nil {
					return err
				}
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), map[string]any{"run": args[0], "remove": append([]int{}, remove...), "stay": append([]int{}, stay...), "removed": yes})
			}
			stays := plural(len(stay), "checkpoint") + " stay"
			if len(stay) == 1 {
				stays += "s"
			}
			verb := "would remove"
			if yes {
				verb = "removed"
			}
			out := cmd.OutOrStdout()
			if len(remove) == 0 {
				_, err := fmt.Fprintf(out, "nothing to remove: %s\n", stays)
				return err
			}
			fmt.Fprintf(out, "%s %s: step %s\n", verb, plural(len(remove), "checkpoint"), inNumbers(remove))
			fmt.Fprintf(out, "%s: step %s\n", stays, inNumbers(stay))
			if !yes {
				_, err = fmt.Fprintln(out, "nothing was removed; --yes removes them")
			}
			return err
		},
	}
	cmd.Flags().IntVar(&keep.Last, "keep", 0, "number of the newest checkpoints that stay")
	cmd.Flags().IntVar(&keep.Every, "keep-every", 0, "checkpoints of steps that are multiples of `N` stay")
	cmd.Flags().IntVar(&keep.Best, "keep-best", 0, "number of checkpoints with the best metric that stay")
	cmd.Flags().BoolVar(&stages, "stages", false, "remove what killed saves have left, not checkpoints")
	cmd.Flags().DurationVar(&older, "older", 24*time.Hour, "with --stages: `TIME` for which nothing was written to a stage that goes; longer than a save takes")
	cmd.Flags().BoolVar(&yes, "yes", false, "remove them, do not only say which")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

// pruneStages says which stages of killed saves a storage has, and removes them.
func pruneStages(cmd *cobra.Command, arg string, older time.Duration, yes, asJSON bool) error {
	at, err := locate(arg)
	if err != nil {
		return err
	}
	if at.Inside == nil {
		return fmt.Errorf("%s is a file, not a run: give the folder that has its steps", at.Text)
	}
	before := time.Now().Add(-older)
	var remove []checkpoint.LeftStage
	if yes {
		remove, err = checkpoint.RemoveStages(cmd.Context(), at.Inside, before)
	} else if remove, err = checkpoint.LeftStages(cmd.Context(), at.Inside); err == nil {
		remove = slices.DeleteFunc(remove, func(l checkpoint.LeftStage) bool { return !l.IsOlder(before) })
	}
	if err != nil {
		return err
	}
	names, bytes := []string{}, int64(0)
	for _, l := range remove {
		names, bytes = append(names, l.Name), bytes+l.Bytes
	}
	out := cmd.OutOrStdout()
	switch {
	case asJSON:
		return printJSON(out, map[string]any{"run": visible.Text(at.Text), "stages": names, "bytes": bytes, "removed": yes})
	case len(names) == 0:
		_, err = fmt.Fprintf(out, "nothing to remove: no stage to which nothing was written for %v\n", older)
	case yes:
		_, err = fmt.Fprintf(out, "removed %s of killed saves, %s: %s\n", plural(len(names), "stage"), inBytes(bytes), visible.Text(strings.Join(names, ", ")))
	default:
		_, err = fmt.Fprintf(out, "would remove %s of killed saves, %s: %s\nnothing was removed; --yes removes them\n", plural(len(names), "stage"), inBytes(bytes), visible.Text(strings.Join(names, ", ")))
	}
	return err
}

func inNumbers(list []int) string {
	texts := make([]string, len(list))
	for i, n := range list {
		texts[i] = fmt.Sprint(n)
	}
	return strings.Join(texts, ", ")
}
