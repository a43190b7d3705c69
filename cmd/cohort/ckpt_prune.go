// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cohort-ml/cohort/checkpoint"
)

func newCkptPruneCommand() *cobra.Command {
	var asJSON, yes bool
	var keep checkpoint.Retention
	cmd := &cobra.Command{
		Use:   "prune RUN",
		Short: "Remove old checkpoints of a run by rules",
		Long: `Say which checkpoints of a run would be removed by the rules given, and with --yes
remove them. A checkpoint stays if any rule wants it. Damaged ones do not count among
those that stay. What later checkpoints share with removed ones stays with them.`,
		Example: `  cohort ckpt prune out/lm --keep 3
  cohort ckpt prune out/lm --keep 3 --keep-every 1000 --keep-best 2 --yes`,
		Args: numArgs(1, "a run"),
		RunE: func(cmd *cobra.Command, args []string) error {
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
	cmd.Flags().BoolVar(&yes, "yes", false, "remove them, do not only say which")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

func inNumbers(list []int) string {
	texts := make([]string, len(list))
	for i, n := range list {
		texts[i] = fmt.Sprint(n)
	}
	return strings.Join(texts, ", ")
}
