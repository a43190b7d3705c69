// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/cohort-ml/cohort/train"
)

func newCkptProveCommand() *cobra.Command {
	var o train.ProveOptions
	var asJSON, background bool
	cmd := &cobra.Command{
		Use:   "prove CKPT",
		Short: "Check that a checkpoint continues its run, by doing the next step again",
		Long: `Load a checkpoint as a run that resumes does, do the step after it again, and compare
it with what the run noted of this step in proof.json: the state that was loaded, the
samples, the learning rates, the loss, the gradient of each parameter, and the weights
and the optimizer's state after the step. CKPT is the place of a run of cohort
train, whose newest checkpoint is taken, or of one checkpoint: a directory or an
address (s3://, https://).

The ranks are goroutines of one process. By default they are arranged as those of the
run were, and each bit must be the same. Other axes of the mesh, such as --replicate 1
for a single rank, add up in another order: then numbers may differ by 1e-5 of the norm
of their tensor (--tolerance). Nothing is written.

For each difference the command names what differs, first what was loaded and then
what follows from it. The exit code is 3 if something differs.`,
		Example: `  cohort ckpt prove out/lm
  cohort ckpt prove --replicate 1 out/lm/step-00001000
  cohort ckpt prove --json --data elsewhere/notes.txt out/notes`,
		Args: numArgs(1, "a checkpoint of a run"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if background {
				if err := toBackground(); err != nil {
					return fmt.Errorf("--%s: %w", backgroundFlag, err)
				}
			}
			o.Notice = func(text string) { fmt.Fprintf(cmd.ErrOrStderr(), "cohort: %s\n", text) }
			place, err := openModelPlace(args[0])
			if err != nil {
				return usageError{err}
			}
			got, err := train.Prove(cmd.Context(), place, o)
			if err != nil {
				return err
			}
			if asJSON {
				err = printJSON(cmd.OutOrStdout(), got)
			} else {
				_, err = io.WriteString(cmd.OutOrStdout(), got.String())
			}
			if err == nil {
				err = got.Err()
			}
			if err != nil {
				return answerError{err}
			}
			return nil
		},
	}
	fl := cmd.Flags()
	for _, axis := range []struct {
		name  string
		value *int
		usage string
	}{
		{"replicate", &o.Mesh.Replicate, "replicas of the model, `N` of them"},
		{"fsdp", &o.Mesh.FSDP, "`N` ranks that shard the state of the model"},
		{"tp", &o.Mesh.TP, "`N` ranks that split matrices"},
		{"pp", &o.Mesh.PP, "`N` stages of a pipeline"},
		{"ep", &o.Mesh.EP, "`N` ranks that share out experts"},
		{"cp", &o.Mesh.CP, "`N` ranks that split sequences"},
	} {
		fl.IntVar(axis.value, axis.name, 0, axis.usage)
		groupFlags(fl, "Mesh, in place of that of the run", axis.name)
	}
	fl.StringVar(&o.Data, "data", "", "`PATH` of the data, if they are not where the run found them")
	fl.Float64Var(&o.Tolerance, "tolerance", 0, "relative `NUMBER` by which tensors may differ where bits are not compared; 0: 1e-5")
	fl.BoolVar(&background, backgroundFlag, false, "run at the lowest priority, beside training")
	fl.Lookup(backgroundFlag).Hidden = true // of --prove of cohort train
	fl.BoolVar(&asJSON, "json", false, "print the comparison as one JSON object")
	return cmd
}
