// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"cmp"
	"io"
	"maps"
	"slices"
	"strconv"

	"github.com/cohort-ml/cohort/internal/event"
)

// MaxGroups bounds the groups of ranks that have series of their own.
const MaxGroups = 16

// other is the group of what is in none of these.
const other = "other"

// Write writes the metrics of the ranks of a host.
func Write(w io.Writer, ranks []event.Answer) error {
	up := &family{name: "cohort_rank_up", help: "Whether the rank has answered.", kind: gauge}
	world := &family{name: "cohort_ranks", help: "Ranks of the job.", kind: gauge}
	step := &family{name: "cohort_step", help: "Steps that the rank has done.", kind: gauge}
	families := []*family{up, world, step}
	var files []*event.File
	for _, r := range ranks {
		rank := label{"rank", strconv.Itoa(r.Rank)}
		if r.File == nil {
			up.add(0, rank)
			continue
		}
		up.add(1, rank)
		files = append(files, r.File)
		step.add(float64(r.File.Figures.Step), rank)
	}
	slices.SortFunc(files, func(a, b *event.File) int { return cmp.Compare(a.Rank, b.Rank) })
	if len(files) > 0 {
		world.add(float64(files[0].WorldSize))
		families = append(families, lastStep(files[0])...)
	}
	families = append(families, ofRanks(files)...)
	families = append(families, ofGroups(files)...)
	return write(w, families)
}

// lastStep has what all ranks know alike of the last step.
func lastStep(f *event.File) (families []*family) {
	for _, m := range []struct{ member, name, help string }{
		{"loss", "cohort_loss", "Loss of the last step."},
		{"learning_rate", "cohort_learning_rate", "Learning rate of the last step."},
		{"grad_norm", "cohort_gradient_norm", "Norm of all gradients of the last step, before clipping."},
		{"epoch", "cohort_epoch", "How often the run has gone through its samples."},
		{"size", "cohort_step_size", "Size of the batches of all ranks in the last step, in the unit of the task."},
		{"seconds", "cohort_step_seconds", "Duration of the last step."},
	} {
		if v, ok := f.Figures.Last[m.member]; ok && f.Figures.Step > 0 {
			of := &family{name: m.name, help: m.help, kind: gauge}
			of.add(v)
			families = append(families, of)
		}
	}
	return families
}

// ofRanks has what each rank has of its own.
func ofRanks(files []*event.File) []*family {
	phases := &family{name: "cohort_phase_seconds_total", help: "Time of the rank by what it was at. Waiting is standing still because another rank has not come.", kind: counter}
	memory := &family{name: "cohort_memory_bytes", help: "Memory of the rank: in tensors, in Go's heap, of the process.", kind: gauge}
	cpu := &family{name: "cohort_cpu_seconds_total", help: "Processor time of the rank's process.", kind: counter}
	gc := &family{name: "cohort_gc_cpu_seconds_total", help: "Processor time of the garbage collector.", kind: counter}
	flops := &family{name: "cohort_floating_point_operations_total", help: "Floating-point operations of products that the rank's process has done: of the model, or again to save memory.", kind: counter}
	peak := &family{name: "cohort_peak_flops", help: "Floating-point operations a second that the rank's threads reach at best, as measured.", kind: gauge}
	events := &family{name: "cohort_events_total", help: "Events of the rank, by kind.", kind: counter}
	for _, f := range files {
		rank := label{"rank", strconv.Itoa(f.Rank)}
		for p := range event.NumPhases {
			if d, ok := f.Figures.Phases[p.String()]; ok {
				phases.add(max(0, d.Seconds()), rank, label{"phase", p.String()})
			}
		}
		m := f.Figures.Memory
		for _, of := range []struct {
			kind  string
			bytes int64
		}{{"tensors", m.Tensors}, {"heap", m.Heap}, {"resident", m.Resident}} {
			if of.bytes > 0 {
				memory.add(float64(of.bytes), rank, label{"kind", of.kind})
			}
		}
		if m.CPU > 0 {
			cpu.add(m.CPU.Seconds(), rank)
			gc.add(max(0, m.GC.Seconds()), rank)
		}
		if m.FLOPs > 0 {
			flops.add(float64(max(0, m.FLOPs-m.Again)), rank, label{"kind", "model"})
			flops.add(float64(max(0, m.Again)), rank, label{"kind", "again"})
		}
		if m.Peak > 0 {
			peak.add(m.Peak, rank)
		}
		for _, kind := range event.Kinds() {
			if n := f.Figures.Events[kind.String()]; n > 0 {
				events.add(float64(n), rank, label{"kind", kind.String()})
			}
		}
	}
	return []*family{phases, memory, cpu, gc, flops, peak, events}
}

// groupOp is an operation in a group.
type groupOp struct{ group, op string }

// ofGroups has the sums over the ranks, by group and operation.
func ofGroups(files []*event.File) []*family {
	sums := map[groupOp]event.OpFigures{}
	best := map[groupOp]float64{}
	named := map[string]bool{other: true}
	for _, f := range files {
		for _, g := range f.Figures.Channels {
			name := g.Name
			if !named[name] {
				if len(named) > MaxGroups {
					name = other
				}
				named[name] = true
			}
			for _, op := range g.Ops {
				key := groupOp{name, op.Op}
				sum := sums[key]
				sum.Calls, sum.Bytes, sum.Running = sum.Calls+op.Calls, sum.Bytes+op.Bytes, sum.Running+op.Running
				if op.Fastest > 0 {
					best[key] = max(best[key], float64(op.Largest)/op.Fastest.Seconds())
				}
				sums[key] = sum
			}
		}
	}
	calls := &family{name: "cohort_collective_calls_total", help: "Calls of the operation in the group, of all ranks of the host.", kind: counter}
	bytes := &family{name: "cohort_collective_bytes_total", help: "Data of these calls, as each rank gives or gets them.", kind: counter}
	running := &family{name: "cohort_collective_seconds_total", help: "Time from the beginning of these calls to their end, with waiting for other ranks.", kind: counter}
	rate := &family{name: "cohort_collective_best_bytes_per_second", help: "Rate of the fastest of the largest of these calls of a rank: what the link reaches.", kind: gauge}
	keys := slices.SortedFunc(maps.Keys(sums), func(a, b groupOp) int {
		return cmp.Or(cmp.Compare(a.group, b.group), cmp.Compare(a.op, b.op))
	})
	for _, key := range keys {
		labels := []label{{"group", key.group}, {"op", key.op}}
		sum := sums[key]
		calls.add(float64(sum.Calls), labels...)
		bytes.add(float64(max(0, sum.Bytes)), labels...)
		running.add(max(0, sum.Running.Seconds()), labels...)
		if key.group != other && best[key] > 0 {
			rate.add(best[key], labels...)
		}
	}
	return []*family{calls, bytes, running, rate}
}
