// SPDX-License-Identifier: Apache-2.0

// Package trace writes what all ranks of a job did in some of its steps: one file for Perfetto
// (https://ui.perfetto.dev) or chrome://tracing, and a table of the operations that cost most.
//
// # Mental model
//
// Each rank has a [Profiler] and tells it when a step begins and ends. From the first of the wanted steps
// to the last it keeps the operations of the goroutine that has called Begin, with the module that each
// belongs to, and reads phases and collectives from the events of the rank. At the end of the last step the
// ranks measure how far their clocks are apart, and rank 0 gathers everything and writes:
//
//   - profile-FROM-TO.json, in Chrome's trace format: a process for each rank, with tracks for phases,
//     modules, operations and collectives, arrows from the rank that came last to a collective to the
//     others, and the memory of tensors;
//   - profile-FROM-TO.costs.json: operations by module, with their time, floating-point operations, bytes,
//     and the share of what the machine could reach ([Cost]).
//
// The recipes of cohort train do so with --profile, and programs that call train.Run by
// train.Options.Profile or the variable COHORT_PROFILE. A program with a loop of its own:
//
//	p := trace.New(group, trace.Options{From: 100, To: 105, Dir: "out"})
//	for step := 1; step <= steps; step++ {
//		p.Begin(step)
//		… // the step
//		if _, err := p.End(ctx, step); err != nil { … }
//	}
//
// Outside of these steps a profiler does nothing. End of the last step is a collective.
//
// # Limits
//
// A rank keeps 131,072 operations and what its stream of events keeps within a step: 2,048 collectives and
// phases. What is lost is counted in the file. On a device that computes later, an operation is the time to
// queue it.
package trace
