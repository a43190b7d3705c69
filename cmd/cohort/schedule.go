// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/cohort-ml/cohort/parallel/schedule"
)

// pipelineStep has the flags of cohort schedule: a step of a pipeline, and how long its parts
// take.
type pipelineStep struct {
	name                        string
	ranks, stages, microbatches int
	forward, input, weight      time.Duration
	delay                       time.Duration
	svg                         string
	asJSON                      bool
}

func newScheduleCommand() *cobra.Command {
	s := &pipelineStep{}
	cmd := &cobra.Command{
		Use:   "schedule",
		Short: "Draw the schedule of a pipeline, and predict the time of a step",
		Long: `Play a step of a pipeline in virtual time. The command draws which rank works when
on which microbatch: F is a forward pass, B a backward pass, I and W are its parts
for the input and for the weights. A rank with several stages has the stage before
the letter. Below the chart are the time of the step, the bubble (the part of the
ranks' time in which they wait), and the most activations that each rank holds:
forward passes whose backward passes are not at their end.

All numbers are in units of a rank. The times are those of all layers of a rank
for one microbatch; if the rank has two stages, each takes half of them, and holds
half of the activations. A whole backward pass takes --input and --weight together.`,
		Example: `  cohort schedule --name 1f1b --ranks 4 --microbatches 8
  cohort schedule --name zbv --ranks 4 --microbatches 8 --svg zbv.svg
  cohort schedule --name all --ranks 8 --microbatches 64 --delay 100us`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			out := cmd.OutOrStdout()
			if err := s.check(); err != nil {
				return usageError{fmt.Errorf("schedule: %w", err)}
			}
			if s.name == "all" {
				return s.compare(out)
			}
			return s.show(out, helpWidth(out))
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&s.name, "name", "1f1b", "which schedule; all compares them")
	oneOf(flags, "name", append(schedule.Names(), "all")...)
	flags.IntVar(&s.ranks, "ranks", 4, "number of ranks of the pipeline")
	flags.IntVar(&s.stages, "stages", 0, "number of stages (default: one or two for each rank, as the schedule wants)")
	flags.IntVar(&s.microbatches, "microbatches", 8, "number of microbatches of a step")
	flags.DurationVar(&s.forward, "forward", time.Millisecond, "time of the forward pass of a rank's layers")
	flags.DurationVar(&s.input, "input", 0, "time of the part of a backward pass for the input (default: that of a forward pass)")
	flags.DurationVar(&s.weight, "weight", 0, "time of the part of a backward pass for the weights (default: that of a forward pass)")
	flags.DurationVar(&s.delay, "delay", 0, "time of a message between two ranks")
	flags.StringVar(&s.svg, "svg", "", "write the chart as an image to `FILE`")
	flags.BoolVar(&s.asJSON, "json", false, "print the numbers as JSON, one object in a line")
	return cmd
}

// check refuses numbers that no pipeline has.
func (s *pipelineStep) check() error {
	for _, d := range []struct {
		flag string
		at   *time.Duration
	}{{"--input", &s.input}, {"--weight", &s.weight}, {"--delay", &s.delay}, {"--forward", &s.forward}} {
		if *d.at < 0 || *d.at > time.Hour {
			return fmt.Errorf("%s is %v: want a time from 0 to an hour", d.flag, *d.at)
		}
	}
	if s.name == "all" && s.svg != "" {
		return fmt.Errorf("--svg draws one schedule: name it with --name")
	}
	const most = 4_000_000
	if n := max(1, s.ranks, s.stages) * max(1, s.microbatches); n > most || s.ranks > most || s.microbatches > most || s.stages > most {
		return fmt.Errorf("%d stages with %d microbatches are more than this command plays: at most %d of stages × microbatches", max(s.ranks, s.stages), s.microbatches, most)
	}
	return nil
}

// played is a step that was simulated, as JSON and as a row of the comparison.
type played struct {
	Schedule     string  `json:"schedule"`
	Ranks        int     `json:"ranks"`
	Stages       int     `json:"stages"`
	Microbatches int     `json:"microbatches"`
	StepMicros   float64 `json:"step_us"`
	Bubble       float64 `json:"bubble"`
	// Activations are the most that a rank holds of all its layers, by rank.
	Activations []float64 `json:"activations"`

	schedule *schedule.Schedule
	step     *schedule.Simulation
}

// play simulates the step under a schedule.
func (s *pipelineStep) play(name string) (*played, error) {
	plan, err := schedule.New(name, s.ranks, s.stages, s.microbatches)
	if err != nil {
		return nil, usageError{err}
	}
	perRank := time.Duration(plan.NumStages / plan.NumRanks())
	forward, input, weight := s.forward/perRank, cmp.Or(s.input, s.forward)/perRank, cmp.Or(s.weight, s.forward)/perRank
	step, err := plan.Simulate(schedule.SimulateOptions{
		Cost: func(a schedule.Action) time.Duration {
			switch a.Kind {
			case schedule.Forward:
				return forward
			case schedule.BackwardInput:
				return input
			case schedule.BackwardWeight:
				return weight
			}
			return input + weight
		},
		Delay: func(int, int, schedule.Action) time.Duration { return s.delay },
		Ahead: 1,
	})
	if err != nil {
		return nil, err
	}
	held := make([]float64, 0, s.ranks)
	for _, n := range step.Activations {
		held = append(held, float64(n*s.ranks)/float64(plan.NumStages))
	}
	return &played{
		Schedule: name, Ranks: s.ranks, Stages: plan.NumStages, Microbatches: s.microbatches,
		StepMicros: float64(step.Time) / 1e3, Bubble: step.Bubble, Activations: held,
		schedule: plan, step: step,
	}, nil
}

// show draws a step under one schedule, and prints its numbers.
func (s *pipelineStep) show(out io.Writer, width int) error {
	p, err := s.play(s.name)
	if err != nil {
		return err
	}
	if s.svg != "" {
		if err := p.writeSVG(s.svg); err != nil {
			return err
		}
	}
	if s.asJSON {
		return json.NewEncoder(out).Encode(p)
	}
	if s.svg == "" {
		if err := p.drawable(20_000); err != nil {
			fmt.Fprintf(out, "%v\n\n", err)
		} else {
			fmt.Fprintf(out, "%s\n", p.schedule.Text(p.step, width))
		}
	}
	held := fmt.Sprint(p.Activations)
	if most := slices.Max(p.Activations); p.Ranks > 16 {
		held = fmt.Sprintf("at most %.4g", most)
	}
	_, err = fmt.Fprintf(out, "%s: step %v  bubble %.1f %%  activations by rank %s\n", s.name, p.step.Time.Round(time.Microsecond), 100*p.Bubble, held)
	return err
}

// drawable reports whether a chart of the step has at most so many actions.
func (p *played) drawable(most int) error {
	n := 0
	for _, actions := range p.schedule.Ranks {
		n += len(actions)
	}
	if n > most {
		return fmt.Errorf("a chart of %d actions is too large to read: take fewer ranks or microbatches", n)
	}
	return nil
}

func (p *played) writeSVG(path string) error {
	if err := p.drawable(100_000); err != nil {
		return usageError{fmt.Errorf("schedule: --svg: %w", err)}
	}
	if err := os.WriteFile(path, []byte(p.schedule.SVG(p.step)), 0o644); err != nil {
		return usageError{fmt.Errorf("schedule: --svg: %w", err)}
	}
	return nil
}

// compare prints the numbers of the step under each schedule.
func (s *pipelineStep) compare(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	if !s.asJSON {
		fmt.Fprintln(w, "schedule\tstages\tstep\tbubble\tactivations")
	}
	numPlayed := 0
	var refused error
	for _, name := range schedule.Names() {
		p, err := s.play(name)
		switch {
		case err != nil:
			refused = cmp.Or(refused, err)
			if !s.asJSON {
				fmt.Fprintf(w, "%s\t-\t-\t-\t-\n", name)
			}
			continue
		case s.asJSON:
			if err := json.NewEncoder(out).Encode(p); err != nil {
				return err
			}
		default:
			fmt.Fprintf(w, "%s\t%d\t%v\t%.1f %%\t%.4g\n", name, p.Stages, p.step.Time.Round(time.Microsecond), 100*p.Bubble, slices.Max(p.Activations))
		}
		numPlayed++
	}
	if numPlayed == 0 {
		return refused
	}
	if err := w.Flush(); err != nil || refused == nil || s.asJSON {
		return err
	}
	_, err := fmt.Fprintf(out, "\n- does not fit, for example: %v\n", refused)
	return err
}
