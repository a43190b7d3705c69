// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"math"
	"runtime/metrics"
	"time"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/internal/event"
	"github.com/cohort-ml/cohort/monitor/history"
	"github.com/cohort-ml/cohort/tensor"
)

// Ranks compare where their time went about once in compareEvery, but not more often than in each
// step and not more seldom than in each compareSteps steps.
const (
	compareSteps = 100
	firstCompare = 2 // steps of the first window, which has what happens once
	// gatheredSamples bounds the samples of collectives of all ranks together, and those of a rank.
	gatheredSamples = 1 << 13
	leastSamples    = 64
	mostSamples     = 1024
)

// compareEvery is a variable for tests.
var compareEvery = time.Second

// The numbers that a rank gives in a comparison, before its digests, and its samples of three each.
const (
	cellWall = iota
	cellCalls
	cellRunning
	cellTensors
	cellHeap
	cellResident
	cellGC
	cellCPU
	cellFLOPs
	cellAgain
	cellPeak
	cellSamples
	cellDigests
	cellTimes
	numCells = cellTimes + int(event.NumPhases)
	// Digests follow, of two numbers each, and then samples.
	cellsBefore = numCells + 2*numDigests
)

// ledger keeps where the time of all ranks went. All ranks have the same numbers.
type ledger struct {
	stream *event.Stream
	world  *dist.Group
	notice func(text string)
	note   func(history.Ranks) // on rank 0; else nil

	next    int // step after which the ranks compare
	last    int // step of the last comparison
	every   uint64
	room    int // samples of a rank
	cells   []int64
	mine    *tensor.Tensor                // the same
	all     *tensor.Tensor                // of all ranks; nil for one
	used    event.MemoryNumbers           // at the last comparison
	fastest float64                       // floating-point operations a second of this rank, in its best window
	peak    float64                       // floating-point operations a second of this rank; 0: not known
	measure func(context.Context) float64 // measures the peak; nil once it need not be
	time    time.Duration                 // of the steps so far; see trained
	links   map[groupOp]event.OpFigures   // at the last comparison

	goodput  Goodput
	slow     slowWatch
	replicas *replicaWatch // nil where no parameters are replicated
	digests  [][]digest    // of all ranks, in the last comparison
}

// newLedger begins the ledger of a rank, at a step. before is what processes before had.
func newLedger(world *dist.Group, step int, before *Goodput, peak float64, same *replicaWatch, notice func(string), note func(history.Ranks)) *ledger {
	room := min(mostSamples, max(leastSamples, gatheredSamples/world.Size()))
	l := &ledger{stream: world.Events(), world: world, notice: notice, note: note, next: step + firstCompare, last: step, every: 1, room: room, peak: peak, slow: newSlowWatch(world), replicas: same}
	if before != nil {
		l.goodput = *before
	}
	l.goodput.begin(world.Size())
	n := cellsBefore + 3*room
	l.cells = make([]int64, n)
	if world.Size() > 1 {
		l.all = tensor.New(tensor.CPU(), tensor.Int64, world.Size()*n)
	}
	l.used = readUsed()
	l.stream.Cut(1) // what was before does not count
	return l
}

// due reports whether the ranks compare after a step.
func (l *ledger) due(step int) bool { return step >= l.next }

// compare has the ranks tell each other where their time went since the last comparison. All ranks
// call it after the same step.
func (l *ledger) compare(ctx context.Context, step int) error {
	if step <= l.last {
		return nil
	}
	used := readUsed()
	used.Peak = l.peak
	l.stream.Holds(used)
	cut := l.stream.Cut(l.every)
	l.fill(cut, used)
	if l.world.Size() > 1 {
		if err := l.world.AllGather(ctx, l.all, l.mine); err != nil {
			return err
		}
	}
	cuts := l.read()
	l.used = used
	l.take(step, cuts)
	l.trained(ctx, cuts[0].Wall)
	for _, text := range l.replicas.differing(step, l.digests, l.world.Members()) {
		l.stream.Emit(event.Event{Kind: event.Fault, Text: text})
		l.notice(text)
	}
	return nil
}

// fill writes what this rank gives.
func (l *ledger) fill(cut event.Cut, used event.MemoryNumbers) {
	samples := cut.Samples[:min(len(cut.Samples), l.room)]
	to := l.cells
	clear(to)
	to[cellWall], to[cellCalls], to[cellRunning] = int64(cut.Wall), int64(cut.Calls), int64(cut.Running)
	to[cellTensors], to[cellHeap], to[cellResident] = used.Tensors, used.Heap, used.Resident
	to[cellGC], to[cellCPU] = int64(used.GC-l.used.GC), int64(used.CPU-l.used.CPU)
	to[cellFLOPs], to[cellAgain], to[cellPeak] = used.FLOPs-l.used.FLOPs, used.Again-l.used.Again, int64(used.Peak)
	to[cellSamples] = int64(len(samples))
	for p, d := range cut.Times {
		to[cellTimes+p] = int64(d)
	}
	for i, s := range samples {
		at := to[cellsBefore+3*i:]
		at[0], at[1], at[2] = int64(s.ID), int64(s.Took), int64(s.Exposed)
	}
	if l.world.Size() > 1 {
		digests := l.replicas.next()
		to[cellDigests] = int64(len(digests))
		for i, d := range digests {
			to[numCells+2*i], to[numCells+2*i+1] = int64(d.key), int64(d.hash)
		}
	}
	l.mine = tensor.FromInt64(to)
}

// read returns what all ranks have given.
func (l *ledger) read() []event.Cut {
	cuts := make([]event.Cut, l.world.Size())
	n := cellsBefore + 3*l.room
	l.digests = make([][]digest, len(cuts))
	from := l.cells
	if l.world.Size() > 1 {
		from = l.all.Int64s()
	}
	for r := range cuts {
		of, c := from[r*n:(r+1)*n], &cuts[r]
		c.Wall, c.Calls, c.Running = time.Duration(of[cellWall]), int(of[cellCalls]), time.Duration(of[cellRunning])
		c.Held = event.MemoryNumbers{Tensors: of[cellTensors], Heap: of[cellHeap], Resident: of[cellResident], GC: time.Duration(of[cellGC]), CPU: time.Duration(of[cellCPU]), FLOPs: of[cellFLOPs], Again: of[cellAgain], Peak: float64(of[cellPeak])}
		for p := range c.Times {
			c.Times[p] = time.Duration(of[cellTimes+p])
		}
		for i := range min(l.room, int(of[cellSamples])) {
			at := of[cellsBefore+3*i:]
			c.Samples = append(c.Samples, event.Sample{ID: uint64(at[0]), Took: time.Duration(at[1]), Exposed: time.Duration(at[2])})
		}
		for i := range min(numDigests, int(of[cellDigests])) {
			l.digests[r] = append(l.digests[r], digest{uint64(of[numCells+2*i]), uint64(of[numCells+2*i+1])})
		}
	}
	return cuts
}

// take adds what all ranks have given to the sums, and says when they compare next.
func (l *ledger) take(step int, cuts []event.Cut) {
	samples := make([][]event.Sample, len(cuts))
	var calls int
	var wall time.Duration
	for r, c := range cuts {
		samples[r] = c.Samples
		calls, wall = max(calls, c.Calls), wall+c.Wall/time.Duration(len(cuts))
	}
	waits := event.Attribute(samples)
	steps := step - l.last
	record := history.Ranks{Step: step, Steps: steps, Time: history.At(time.Now()), Seconds: wall.Seconds(), Phases: map[string]history.Column{}}
	times := make([]event.Times, len(cuts))
	for r, c := range cuts {
		times[r] = waits.Split(r, c.Times)
	}
	scaleAll := scaleOfAll(waits, times)
	for r, c := range cuts {
		hidden := max(0, moving(waits, r, c)-times[r][event.Communication])
		for p, d := range times[r] {
			name := event.Phase(p).String()
			record.Phases[name] = append(record.Phases[name], d.Seconds())
		}
		scale := scaleOf(waits, r, times[r])
		record.Hidden = append(record.Hidden, hidden.Seconds())
		record.For = append(record.For, waits.For[r])
		record.ForSeconds = append(record.ForSeconds, scale*waits.Longest[r].Seconds())
		record.Late = append(record.Late, scaleAll*waits.Caused[r].Seconds())
		record.Resident, record.Tensors, record.Heap = append(record.Resident, c.Held.Resident), append(record.Tensors, c.Held.Tensors), append(record.Heap, c.Held.Heap)
		record.CPU, record.GC = append(record.CPU, c.Held.CPU.Seconds()), append(record.GC, c.Held.GC.Seconds())
	}
	noteWork(&record, cuts)
	me := l.world.Rank()
	l.stream.Waited(times[me][event.Waiting])
	if own := cuts[me]; own.Wall > 0 && own.Held.Peak > 0 {
		l.fastest = max(l.fastest, float64(own.Held.FLOPs)/own.Wall.Seconds())
	}
	l.goodput.add(times, record.Hidden)
	if slow := l.slow.look(&record, cuts); slow != "" {
		l.notice(slow)
	}
	if l.note != nil {
		record.Links = l.usedLinks()
		l.note(record)
	}
	l.last = step
	l.next = step + min(compareSteps, max(1, int(math.Round(float64(compareEvery)/(float64(wall)/float64(steps)+1)))))
	perStep := float64(calls) / float64(steps)
	l.every = max(1, uint64(math.Ceil(perStep*float64(l.next-step)/float64(l.room))))
}

// moving is how long data of a rank moved, as its samples say for all of its calls.
func moving(w event.Waits, r int, c event.Cut) time.Duration {
	var sampled time.Duration
	for _, s := range c.Samples {
		sampled += s.Took
	}
	if sampled <= 0 {
		return 0
	}
	return time.Duration(float64(w.Moving[r]) * max(1, float64(c.Running)/float64(sampled)))
}

// scaleOf is by how much more a rank waited than its samples say.
func scaleOf(w event.Waits, r int, t event.Times) float64 {
	if w.Waiting[r] <= 0 {
		return 0
	}
	return float64(t[event.Waiting]) / float64(w.Waiting[r])
}

// scaleOfAll is that of all ranks.
func scaleOfAll(w event.Waits, times []event.Times) float64 {
	var waited, sampled time.Duration
	for r, t := range times {
		waited, sampled = waited+t[event.Waiting], sampled+w.Waiting[r]
	}
	if sampled <= 0 {
		return 0
	}
	return float64(waited) / float64(sampled)
}

// readUsed reads what the process holds and has used.
func readUsed() event.MemoryNumbers {
	s := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/cpu/classes/gc/total:cpu-seconds"}}
	metrics.Read(s)
	now, _ := tensor.MemoryInUse()
	cpu, resident := processUsage()
	done, again := tensor.FLOPs()
	return event.MemoryNumbers{FLOPs: done, Again: again, Tensors: now, Heap: int64(s[0].Value.Uint64()), Resident: resident, GC: time.Duration(s[1].Value.Float64() * float64(time.Second)), CPU: cpu}
}
