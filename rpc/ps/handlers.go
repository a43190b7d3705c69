// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cohort-ml/cohort/rpc/ps/rows"
	"github.com/cohort-ml/cohort/tensor"
)

// counts are what a server has done.
type counts struct{ pulls, pulledRows, pushes, pushedRows, refused atomic.Uint64 }

// maxParts bounds the parts of a request.
const maxParts = 1 << 14

// checkKeys returns what is wrong with the keys of a request.
func (s *Server) checkKeys(t *rows.Schema, keys []int64) *Error {
	if t.Rows > 0 {
		lo, hi := s.routing.Range(s.index, t.Rows)
		for _, k := range keys {
			if k < lo || k >= hi {
				if k < 0 || k >= int64(t.Rows) {
					return s.errorf(KindKeys, "the table has the keys 0 to %d", t.Rows-1).of(t.Name).keys(k, k)
				}
				return s.errorf(KindKeys, "the server has the keys %d to %d", lo, hi-1).of(t.Name).keys(k, k)
			}
		}
		return nil
	}
	if s.count == 1 {
		return nil
	}
	for _, k := range keys {
		if owner := s.routing.ServerOf(k, 0); owner != s.index {
			return s.errorf(KindKeys, "the key is one of server %d", owner).of(t.Name).keys(k, k)
		}
	}
	return nil
}

// checkOffsets returns what is wrong with where bags begin.
func checkOffsets(offsets []int64, n int) *Error {
	at := int64(0)
	for i, o := range offsets {
		if o < at || o > int64(n) || i == 0 && o != 0 {
			return errorf(KindKeys, "offset %d is %d: want 0, and then no less than the one before, up to the %d keys", i, o, n)
		}
		at = o
	}
	if len(offsets) == 0 && n > 0 {
		return errorf(KindKeys, "%d keys in no bag", n)
	}
	return nil
}

// tableNames lists tables, for messages.
func tableNames(tables []rows.Schema) string {
	const most = 10
	var names []string
	for i, t := range tables {
		if i == most {
			names = append(names, fmt.Sprintf("%d more", len(tables)-most))
			break
		}
		names = append(names, fmt.Sprintf("%q", t.Name))
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// await waits until a worker may see the rows for a step.
func (s *Server) await(ctx context.Context, worker int, step int64) (*view, error) {
	ok := func(v *view) ([]int, bool) { return v.lacks(step) }
	if worker < 0 {
		ok = func(*view) ([]int, bool) { return nil, true }
	}
	return s.wait(ctx, worker, step, ok)
}

// lacks returns the workers that somebody waits for who wants the rows for a step, and
// whether there is nobody.
func (v *view) lacks(step int64) (missing []int, ok bool) {
	if v.set.Consistency == nil {
		return nil, true
	}
	need := step
	switch v.set.Consistency.mode() {
	case ModeSynchronous:
		if v.applied >= step {
			return nil, true
		}
	case ModeBounded:
		need = step - int64(v.set.Consistency.Bound)
	default:
		return nil, true
	}
	for w, n := range v.next {
		if n < need && !v.left[w] {
			missing = append(missing, w)
		}
	}
	return missing, len(missing) == 0 && v.set.Consistency.mode() == ModeBounded
}

// lacksForBatch returns the workers without which the batch cannot be complete, if it is
// known that it needs them.
func (v *view) lacksForBatch() (missing []int) {
	for w, l := range v.left {
		if !l && !slices.Contains(v.inBatch, w) {
			missing = append(missing, w)
		}
	}
	if len(missing)+len(v.inBatch) > v.set.Consistency.Batch {
		return nil // others will do
	}
	return missing
}

// answerEarly is how long before its deadline a request that waits is answered: the answer
// says for whom it waited, and must be there in time.
func answerEarly(left time.Duration) time.Duration { return left - min(left/10, time.Second) }

// wait waits until ok. The error after the deadline names the workers that ok lacks.
func (s *Server) wait(ctx context.Context, worker int, step int64, ok func(v *view) ([]int, bool)) (*view, error) {
	var late <-chan time.Time
	began := time.Now()
	for {
		if e := s.failed.Load(); e != nil {
			return nil, e
		}
		v := s.view.Load()
		missing, is := ok(v)
		if is {
			return v, nil
		}
		if no := s.refusal(missing); no != nil {
			return nil, no
		}
		if late == nil {
			if end, has := ctx.Deadline(); has {
				timer := time.NewTimer(answerEarly(time.Until(end)))
				defer timer.Stop()
				late = timer.C
			} else {
				late = make(chan time.Time)
			}
		}
		select {
		case <-v.changed:
		case <-late:
			return nil, s.late(v, worker, step, missing, time.Since(began))
		case <-s.stopped:
			return nil, s.failed.Load()
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// refusal returns why a push of one of the workers was refused, if it was: waiting for it
// is in vain.
func (s *Server) refusal(missing []int) *Error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range missing {
		if e := s.refused[w]; e != nil {
			out := *e
			out.Msg = "others wait for this push, which was refused: " + e.Msg
			return &out
		}
	}
	return nil
}

// late is the error of a request that waited for workers until its deadline.
func (s *Server) late(v *view, worker int, step int64, missing []int, after time.Duration) *Error {
	e := s.errorf(KindWaiting, "").by(worker, step)
	var names []string
	any := ""
	if len(missing) == 0 { // of a batch that others can complete
		any = "a push of any of "
		for w, left := range v.left {
			if !left {
				missing = append(missing, w)
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range missing {
		said := "it has never come"
		if name := s.heard[w]; name != "" {
			said = "as " + name
		}
		names = append(names, fmt.Sprintf("worker %d (%s), whose next step is %d", w, said, v.next[w]))
		if len(names) == 10 && len(missing) > 11 {
			names = append(names, fmt.Sprintf("%d more workers", len(missing)-10))
			break
		}
	}
	e.Msg = fmt.Sprintf("waited %v for %s%s", after.Round(time.Millisecond), any, strings.Join(names, ", "))
	return e
}

// push takes the gradients of a client.
func (s *Server) push(ctx context.Context, in pushArgs) (pushAnswer, error) {
	v := s.view.Load()
	r := &request{client: in.Client, worker: in.Worker, number: in.Number}
	if no := s.isMet(in.Life); no != nil {
		return pushAnswer{}, no
	}
	defer runtime.KeepAlive(&in) // whose memory the writer reads
	no := s.checkPushes(v, &in, r)
	if no != nil {
		s.counts.refused.Add(1)
		s.refuse(in.Worker, no)
		return pushAnswer{}, no
	}
	if err := s.do(ctx, r); err != nil {
		return pushAnswer{}, err
	}
	s.accept(in.Worker)
	s.counts.pushes.Add(uint64(len(r.pushes)))
	v = s.view.Load()
	out := pushAnswer{Step: v.applied, Waiting: int64(r.waited)}
	if in.Kept || v.set.Consistency == nil || v.set.Consistency.Batch == 0 {
		return out, nil
	}
	last := &in.Pushes[len(in.Pushes)-1]
	v, err := s.wait(ctx, in.Worker, last.Step, func(v *view) ([]int, bool) {
		return v.lacksForBatch(), v.batches >= r.batch
	})
	if err != nil {
		return pushAnswer{}, err
	}
	out.Step = v.applied
	done, no := s.reads()
	if no != nil {
		return pushAnswer{}, no
	}
	defer done()
	for _, p := range last.Parts {
		t, no := s.gather(v, pullPart{Table: p.Table, Keys: p.Keys})
		if no != nil {
			return pushAnswer{}, no
		}
		out.Rows = append(out.Rows, t)
	}
	return out, nil
}

// refuse lets those who wait for a worker know that its push was refused.
func (s *Server) refuse(worker int, why *Error) {
	if worker < 0 {
		return
	}
	s.mu.Lock()
	s.refused[worker] = why
	s.mu.Unlock()
	// A turn wakes those who wait.
	if writes, _ := s.turns.add(&request{done: make(chan struct{})}); writes {
		s.write(nil, nil)
	}
}

// accept forgets what refuse has said.
func (s *Server) accept(worker int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.refused, worker)
}

// maxSteps is how many steps a job has at most: rows note theirs in 32 bits.
const maxSteps = math.MaxUint32

// checkPushes reads the pushes of a request, as far as they can be checked beside others.
func (s *Server) checkPushes(v *view, in *pushArgs, r *request) *Error {
	if len(in.Pushes) == 0 || len(in.Pushes) > maxParts {
		return s.errorf(KindOrder, "a request with %d pushes: want 1 to %d", len(in.Pushes), maxParts).by(in.Worker, -1)
	}
	mode := ModeAsynchronous
	if c := v.set.Consistency; c != nil {
		mode = c.mode()
	}
	if in.Worker >= len(v.next) || in.Worker < -1 || in.Worker < 0 && mode != ModeAsynchronous {
		return s.noWorker(len(v.next), mode).by(in.Worker, -1)
	}
	for _, item := range in.Pushes {
		p := &push{client: in.Client, worker: in.Worker, step: item.Step}
		if item.Step < 0 || item.Step >= maxSteps || len(item.Parts) > maxParts {
			return s.errorf(KindOrder, "a push of %d parts for step %d", len(item.Parts), item.Step).by(in.Worker, -1)
		}
		var seen []int
		for _, it := range item.Parts {
			q, no := s.checkPart(v, it)
			if no == nil && slices.Contains(seen, q.table) {
				no = s.errorf(KindTable, "the push has the table twice").of(it.Table)
			}
			if no != nil {
				return no.by(in.Worker, item.Step)
			}
			seen = append(seen, q.table)
			p.parts = append(p.parts, q)
			s.counts.pushedRows.Add(uint64(len(q.keys)))
		}
		r.pushes = append(r.pushes, p)
	}
	return nil
}

// checkPart reads the gradient of a table. The result lies in the memory of the request
// where the request has float32.
func (s *Server) checkPart(v *view, in pushPart) (part, *Error) {
	n, ok := v.number[in.Table]
	if !ok {
		return part{}, s.errorf(KindTable, "there is no such table; there are %s", tableNames(v.set.Tables)).of(in.Table)
	}
	schema := &v.set.Tables[n]
	keys, err := int64sOf(in.Keys, "keys")
	if err != nil {
		return part{}, s.errorf(KindKeys, "%w", err).of(in.Table)
	}
	for i := 1; i < len(keys); i++ {
		if keys[i-1] >= keys[i] {
			return part{}, s.errorf(KindKeys, "the keys of a push must increase: sort them, and add up the gradients of equal ones").of(in.Table).keys(keys[i-1], keys[i])
		}
	}
	if no := s.checkKeys(schema, keys); no != nil {
		return part{}, no
	}
	g := in.Grads
	if g == nil || g.NumDims() != 2 || g.Dim(0) != len(keys) || g.Dim(1) != schema.Width {
		return part{}, s.errorf(KindValues, "the gradients are %s: want [%d, %d]", shapeText(g), len(keys), schema.Width).of(in.Table)
	}
	switch g.DType() {
	case tensor.Float32, tensor.BFloat16, tensor.Float16:
	default:
		return part{}, s.errorf(KindValues, "the gradients are %s: want float32, bfloat16 or float16", shapeText(g)).of(in.Table)
	}
	var grads []float32
	if g.DType() == tensor.Float32 && g.IsContiguous() {
		if grads, err = float32sOf(g); err != nil {
			return part{}, s.errorf(KindValues, "%w", err).of(in.Table)
		}
	} else {
		grads = g.Float32s()
	}
	if i := firstBad(grads); i >= 0 {
		k := keys[i/schema.Width]
		return part{}, s.errorf(KindValues, "value %d of the gradient is %v: the push was refused, and no row has changed", i%schema.Width, grads[i]).of(in.Table).keys(k, k)
	}
	if !(in.LR >= 0 && in.LR <= math.MaxFloat32) {
		return part{}, s.errorf(KindValues, "the learning rate is %v: want a finite number, 0 or more", in.LR).of(in.Table)
	}
	return part{n, in.LR, keys, grads}, nil
}

// firstBad returns the position of the first value that is not finite, -1 for none.
func firstBad(v []float32) int {
	const block = 128
	whole := len(v) / block * block
	for lo := 0; lo < whole; lo += block {
		if !allFinite((*[block]float32)(v[lo:])) {
			return lo + firstBadOf(v[lo:lo+block])
		}
	}
	if i := firstBadOf(v[whole:]); i >= 0 {
		return whole + i
	}
	return -1
}

// allFinite looks at two values at a time.
func allFinite(v *[128]float32) bool {
	const exponents, ones, carries = 0x7f8000007f800000, 0x0080000000800000, 0x8000000080000000
	bad := uint64(0)
	for i := 0; i < len(v); i += 4 {
		a, b := *(*uint64)(unsafe.Pointer(&v[i])), *(*uint64)(unsafe.Pointer(&v[i+2]))
		// The exponent of what is not finite has all bits; only then does the sum carry.
		bad |= (a&exponents + ones) | (b&exponents + ones)
	}
	return bad&carries == 0
}

func firstBadOf(v []float32) int {
	return slices.IndexFunc(v, func(x float32) bool { return math.Float32bits(x)&0x7f800000 == 0x7f800000 })
}

// Status is what a server tells of itself.
type Status struct {
	Server, Servers    int
	Job                string
	Workers            int
	Consistency        string
	LSN                uint64
	Step               int64   // that have been applied
	Next               []int64 // by worker
	Left               []bool
	Clients            int
	Pulls, PulledRows  uint64
	Pushes, PushedRows uint64
	Refused            uint64
	Tables             []TableStatus
	LogBytes           int64  `rpc:"LogBytes,optional"`        // behind the last snapshot
	SnapshotProblem    string `rpc:"SnapshotProblem,optional"` // why the last snapshot failed
}

// TableStatus is what a server tells of a table: its part of the rows.
type TableStatus struct {
	Schema string // JSON
	Stats  rows.Stats
}

// status answers the question how the server is.
func (s *Server) status(context.Context, struct{}) (Status, error) { return s.Status(), nil }

// Status returns what the server has done.
func (s *Server) Status() Status {
	v := s.view.Load()
	st := Status{Server: s.index, Servers: s.count, Job: v.set.Job, Workers: v.set.Workers, LSN: v.lsn, Step: v.applied,
		Next: v.next, Left: v.left, Pulls: s.counts.pulls.Load(), PulledRows: s.counts.pulledRows.Load(),
		Pushes: s.counts.pushes.Load(), PushedRows: s.counts.pushedRows.Load(), Refused: s.counts.refused.Load()}
	if s.journal != nil {
		st.LogBytes = s.journal.Unsaved()
	}
	if no := s.keeper.problem.Load(); no != nil {
		st.SnapshotProblem = no.Error()
	}
	if v.set.Consistency != nil {
		st.Consistency = v.set.Consistency.String()
	}
	done, no := s.reads()
	if no != nil {
		return st
	}
	defer done()
	for i := range v.set.Tables {
		st.Tables = append(st.Tables, TableStatus{schemaText(v.set.Tables[i]), v.tables[i].Stats()})
	}
	return st
}
