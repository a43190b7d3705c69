// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/cohort-ml/cohort/rpc/ps/rows"
)

// maxAhead is how many steps a synchronous worker may push before the slowest one.
const maxAhead = 1024

// maxAheadBytes is how many bytes of pushes a synchronous server keeps for later steps than
// the next one.
const maxAheadBytes = 1 << 30

// maxClients is how many clients a server remembers. It forgets those whose last push is
// the oldest.
const maxClients = 1 << 16

// state is what a server has heard. It follows from the entries of the log alone, in their
// order: apply is the one way to change it, when a request comes and when a log is read
// again. It has no locks: one goroutine uses it.
type state struct {
	routing *Routing
	index   int    // which server it is
	dir     string // of cold rows, in a folder for each table

	set     settings
	tables  []*rows.Table // of set.Tables
	made    []*rows.Table // of the settings that are applied next
	lsn     uint64        // of the last entry
	step    uint64        // the largest number of steps that a worker has made
	applied int64         // steps that have been applied; with ModeBounded and ModeAsynchronous pushes or batches
	next    []int64       // by worker: the step that it pushes next
	left    []bool        // by worker
	pending map[int64][]*push
	ahead   int       // bytes of the pushes in pending
	batch   []*push   // that waits for more
	batches uint64    // that have been applied
	waited  int       // of the last entry: keys without an effect, because they wait for more pushes
	rates   []float64 // learning rates by table, 0 for the optimizer's
	clients map[uint64]*clientRecord
}

// clientRecord is what a server remembers of a client.
type clientRecord struct {
	Number uint64 // of its last push
	LSN    uint64 // of that push
	Batch  uint64 // in which its last push was or will be applied, counted from 1
}

func newState(routing *Routing, index int, dir string) *state {
	return &state{routing: routing, index: index, dir: dir, set: settings{Servers: routing.servers}, pending: map[int64][]*push{}, clients: map[uint64]*clientRecord{}}
}

// close frees the memory of the tables.
func (s *state) close() error {
	var errs []error
	for _, t := range s.tables {
		errs = append(errs, t.Close())
	}
	return errors.Join(append(errs, s.dropTables())...)
}

// coldDir is where the rows of a table lie that do not fit the memory.
func (s *state) coldDir(table int) string {
	if s.dir == "" {
		return ""
	}
	return filepath.Join(s.dir, strconv.Itoa(table))
}

func (s *state) mode() Mode {
	if s.set.Consistency == nil {
		return ModeAsynchronous
	}
	return s.set.Consistency.mode()
}

// apply does what an entry says. An error means that the entry is not one of this server.
func (s *state) apply(lsn uint64, e any) error {
	s.lsn, s.waited = lsn, 0
	switch e := e.(type) {
	case *settings:
		return s.applySettings(e)
	case *push:
		return s.applyPush(e)
	case *Progress:
		return s.applyProgress(e)
	case *removal:
		if e.table >= len(s.tables) {
			return fmt.Errorf("a removal from table %d of %d", e.table, len(s.tables))
		}
		s.tables[e.table].Remove(rows.Mark{LSN: lsn, Step: e.step}, e.keys)
		return nil
	case *leaving:
		if e.worker < 0 || e.worker >= len(s.left) {
			return fmt.Errorf("worker %d of %d leaves", e.worker, len(s.left))
		}
		s.left[e.worker] = true
		if s.mode() == ModeSynchronous {
			return s.completeStep()
		}
		return s.completeBatch()
	case *beginning:
		return s.applyBeginning(e)
	case *insertion:
		return s.applyInsertion(e)
	}
	return fmt.Errorf("an entry of type %T", e)
}

// makeTables makes the tables that settings have beside those that are there. The writer does
// it before the log has the settings, for an entry that cannot be applied would stop the
// server for good. If it fails, nothing has changed.
func (s *state) makeTables(set *settings) *Error {
	for i := len(s.tables) + len(s.made); i < len(set.Tables); i++ {
		t := set.Tables[i]
		o := rows.Options{Owns: s.routing.Owns(s.index, t.Rows)}
		var err error
		if o.Dir = s.coldDir(i); o.Dir != "" && t.Memory > 0 {
			err = os.MkdirAll(o.Dir, 0o777)
		}
		var table *rows.Table
		if err == nil {
			table, err = rows.New(t, o)
		}
		if err != nil {
			_ = s.dropTables() // they are empty
			return errorf(KindTable, "the server cannot make the table: %w", err).of(t.Name)
		}
		s.made = append(s.made, table)
	}
	return nil
}

// dropTables takes back what makeTables has done.
func (s *state) dropTables() error {
	var errs []error
	for _, t := range s.made {
		errs = append(errs, t.Close())
	}
	s.made = nil
	return errors.Join(errs...)
}

func (s *state) applySettings(e *settings) error {
	set, _, no := s.set.agree(*e)
	if no != nil {
		return no
	}
	if no := s.makeTables(&set); no != nil {
		return no
	}
	s.tables, s.made = append(s.tables, s.made...), nil
	s.rates = append(s.rates, make([]float64, len(s.tables)-len(s.rates))...)
	s.set = set
	if n := set.Workers - len(s.next); n > 0 {
		s.next, s.left = append(s.next, make([]int64, n)...), append(s.left, make([]bool, n)...)
	}
	return nil
}

func (s *state) applyPush(p *push) error {
	for i := range p.parts {
		q := &p.parts[i]
		if q.table >= len(s.tables) || len(q.grads) != len(q.keys)*s.set.Tables[q.table].Width {
			return fmt.Errorf("a push to table %d of %d with %d values for %d keys", q.table, len(s.tables), len(q.grads), len(q.keys))
		}
	}
	c := s.clients[p.client]
	if c == nil {
		if len(s.clients) >= maxClients {
			oldest := slices.MinFunc(slices.Collect(maps.Keys(s.clients)), func(a, b uint64) int { return cmp.Compare(s.clients[a].LSN, s.clients[b].LSN) })
			delete(s.clients, oldest)
		}
		c = &clientRecord{}
		s.clients[p.client] = c
	}
	c.Number, c.LSN = p.number, s.lsn
	if p.worker >= len(s.next) || p.worker < 0 && s.mode() == ModeSynchronous {
		return fmt.Errorf("a push of worker %d of %d", p.worker, len(s.next))
	}
	if p.worker >= 0 {
		s.next[p.worker] = max(s.next[p.worker], p.step+1)
		s.left[p.worker] = false
	}
	if s.mode() == ModeSynchronous {
		all := s.pending[p.step]
		if all == nil {
			all = make([]*push, len(s.next))
			s.pending[p.step] = all
		}
		all[p.worker] = p
		s.ahead += p.bytes()
		err := s.completeStep()
		if s.pending[p.step] != nil {
			p.own()
		}
		return err
	}
	s.step = max(s.step, uint64(p.step+1))
	if s.set.Consistency != nil && s.set.Consistency.Batch > 1 {
		c.Batch = s.batches + 1
		s.batch = append(s.batch, p)
		err := s.completeBatch()
		if len(s.batch) > 0 {
			p.own()
		}
		return err
	}
	s.applied++
	return s.update(p.parts)
}

// isComplete reports whether all workers have pushed the next step.
func (s *state) isComplete() bool {
	all := s.pending[s.applied]
	for w, p := range all {
		if p == nil && !s.left[w] {
			return false
		}
	}
	return all != nil
}

// completeStep applies the next step if all workers have pushed it. An entry completes one
// step at most, for rows tell updates apart by the numbers of entries: when a worker has
// left and more steps are complete, the writer makes entries for them.
func (s *state) completeStep() error {
	if !s.isComplete() {
		return nil
	}
	all := s.pending[s.applied]
	delete(s.pending, s.applied)
	for _, p := range all {
		s.ahead -= p.bytes()
	}
	s.applied++
	s.step = uint64(s.applied)
	return s.update(sumParts(all, 1))
}

// completeBatch applies the batch if it has enough pushes, or if all workers that could
// push are in it.
func (s *state) completeBatch() error {
	if s.set.Consistency == nil || len(s.batch) == 0 {
		return nil
	}
	want := s.set.Consistency.Batch
	if here := s.present(); here > 0 {
		want = min(want, here)
	}
	if len(s.batch) < want {
		return nil
	}
	scale := float32(1)
	if s.set.Consistency.Mean {
		scale = 1 / float32(len(s.batch))
	}
	sum := sumParts(s.batch, scale)
	s.batch = nil
	s.batches++
	s.applied++
	return s.update(sum)
}

// present is the number of workers that have not left.
func (s *state) present() int {
	n := 0
	for _, l := range s.left {
		if !l {
			n++
		}
	}
	return n
}

// update changes the rows of parts, which have each table once. The tables of Adam change
// without a part too.
func (s *state) update(parts []part) error {
	byTable := make([]*part, len(s.tables))
	for i := range parts {
		byTable[parts[i].table] = &parts[i]
	}
	for i, t := range s.tables {
		q := byTable[i]
		if q != nil && q.lr != 0 {
			s.rates[i] = q.lr
		}
		if s.set.Tables[i].Optimizer.Kind != rows.Adam && (q == nil || len(q.keys) == 0) {
			continue
		}
		if q == nil {
			q = &part{}
		}
		did, err := t.Update(rows.Mark{LSN: s.lsn, Step: s.step, LR: s.rates[i]}, q.keys, q.grads)
		if err != nil {
			return errorf(KindStorage, "%w", err).of(s.set.Tables[i].Name)
		}
		s.waited += did.Waiting
	}
	return nil
}

// sumParts adds up pushes, of which some may be nil, in their order: the sum has the bits of
// tensor.SumRowGrads.
func sumParts(all []*push, scale float32) []part {
	byTable := map[int][]part{}
	for _, p := range all {
		if p == nil {
			continue
		}
		for _, q := range p.parts {
			if len(q.keys) > 0 || q.lr != 0 {
				byTable[q.table] = append(byTable[q.table], q)
			}
		}
	}
	var out []part
	for _, table := range slices.Sorted(maps.Keys(byTable)) {
		sum := sumRows(byTable[table])
		if scale != 1 {
			if len(byTable[table]) == 1 { // it is the push's own
				sum.grads = slices.Clone(sum.grads)
			}
			for i := range sum.grads {
				sum.grads[i] *= scale
			}
		}
		out = append(out, sum)
	}
	return out
}

// sumRows adds up gradients of a table in their order.
func sumRows(parts []part) part {
	if len(parts) == 1 {
		return parts[0]
	}
	n := 0
	for _, p := range parts {
		n += len(p.keys)
	}
	keys := make([]int64, 0, n)
	for _, p := range parts {
		keys = append(keys, p.keys...)
	}
	slices.Sort(keys)
	keys = slices.Compact(keys)
	width := 0
	for _, p := range parts {
		width = max(width, p.width())
	}
	sum := part{table: parts[0].table, lr: parts[0].lr, keys: keys, grads: make([]float32, len(keys)*width)}
	seen := make([]bool, len(keys))
	for _, p := range parts {
		at := 0
		for i, k := range p.keys {
			for keys[at] != k {
				at++
			}
			dst, src := sum.grads[at*width:(at+1)*width], p.grads[i*width:(i+1)*width]
			if !seen[at] {
				seen[at] = true
				copy(dst, src)
				continue
			}
			for j, x := range src {
				dst[j] += x
			}
		}
	}
	return sum
}

// savedState is the small part of a state in a snapshot.
type savedState struct {
	Version  int
	Settings json.RawMessage
	LSN      uint64
	Step     uint64
	Applied  int64
	Next     []int64
	Left     []bool
	Batches  uint64
	Rates    []float64
	Clients  map[uint64]*clientRecord
	NumBatch int // of the pushes behind, those that wait for a batch
}

// save returns what a snapshot keeps beside the rows.
func (s *state) save() []byte {
	text, err := json.Marshal(savedState{version, s.set.encode(), s.lsn, s.step, s.applied, s.next, s.left, s.batches, s.rates, s.clients, len(s.batch)})
	if err != nil {
		panic(fmt.Sprintf("ps: state: %v", err)) // of plain values
	}
	out := append(binary.LittleEndian.AppendUint32(nil, uint32(len(text))), text...)
	pushes := slices.Clone(s.batch)
	for _, step := range slices.Sorted(maps.Keys(s.pending)) {
		for _, p := range s.pending[step] {
			if p != nil {
				pushes = append(pushes, p)
			}
		}
	}
	for _, p := range pushes {
		b := p.encode()
		out = append(binary.LittleEndian.AppendUint32(out, uint32(len(b))), b...)
	}
	return out
}

// restore is the reverse of save, for a state that has heard nothing.
func (s *state) restore(b []byte) error {
	r := &entryReader{b: b}
	var saved savedState
	if err := json.Unmarshal(r.take(int(r.uint32())), &saved); err != nil || r.bad {
		return fmt.Errorf("the state of a snapshot cannot be read: %w", cmp.Or(err, errEntry))
	}
	if saved.Version != version {
		return fmt.Errorf("the snapshot has version %d, not %d", saved.Version, version)
	}
	set, err := decodeSettings(saved.Settings)
	if err != nil {
		return err
	}
	if err := s.applySettings(&set); err != nil {
		return err
	}
	if len(saved.Next) != len(s.next) || len(saved.Left) != len(s.left) || len(saved.Rates) != len(s.rates) {
		return fmt.Errorf("the snapshot has %d workers of %d, and rates of %d tables of %d", len(saved.Next), len(s.next), len(saved.Rates), len(s.rates))
	}
	s.lsn, s.step, s.applied, s.next, s.left, s.batches, s.rates = saved.LSN, saved.Step, saved.Applied, saved.Next, saved.Left, saved.Batches, saved.Rates
	for id, c := range saved.Clients {
		if c != nil {
			s.clients[id] = c
		}
	}
	for n := 0; len(r.b) > 0 && !r.bad; n++ {
		e, err := decodeEntry(r.take(int(r.uint32())))
		p, ok := e.(*push)
		if err != nil || !ok || p.worker >= len(s.next) {
			return fmt.Errorf("a push of a snapshot cannot be read: %w", cmp.Or(err, errEntry))
		}
		if n < saved.NumBatch {
			s.batch = append(s.batch, p)
			continue
		}
		if p.worker < 0 {
			return errEntry
		}
		if s.pending[p.step] == nil {
			s.pending[p.step] = make([]*push, len(s.next))
		}
		s.pending[p.step][p.worker] = p
		s.ahead += p.bytes()
	}
	if r.bad {
		return errEntry
	}
	return nil
}
