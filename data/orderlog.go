// SPDX-License-Identifier: Apache-2.0

package data

import (
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// OrderLog is one rank's proof of what it was trained on: a text file to which
// every step appends a line, and which [CheckOrder] compares with the order
// that the sampler promises. A run that is resumed appends to it.
//
// The lines of a log, of which each ends with a hash of itself and of all lines
// before it:
//
//	begin version=1 attempt=2 rank=0 world=4 batch=8 total=0 step=120 position=3840 order="stream …" chain=…
//	skip step=121 epoch=0 index=17 by=90 chain=…
//	step number=121 position=3872 samples=8 keys=… chain=…
//	end step=500 chain=…
//
// An attempt is a start of the job: a new one begins whenever the ranks do, and
// all ranks number it alike. Positions are those after the step. Keys is the
// sum, modulo 2⁶⁴, of a 64-bit hash of each key that the rank took, so that the
// sum over the ranks stands for the step's batch whoever took what of it.
//
// Adding costs no system call, a step costs one write. An OrderLog belongs to
// one goroutine.
type OrderLog struct {
	path  string
	rank  int
	file  *os.File
	chain orderChainHash
	last  int64 // attempt
	begun OrderAttempt

	step     int
	position int64
	samples  int64
	keys     uint64
	skipped  []Skip
	line     []byte
	failed   error
}

// OrderAttempt is a start of the job, as all of its ranks see it.
type OrderAttempt struct {
	Attempt int64       // counts from 1; the same on all ranks, and larger than [OrderLog.Last] of each
	World   int         // number of ranks
	Batch   int         // samples that a rank takes at a time
	Total   int         // samples that all ranks take at a time, if that is given instead of Batch ([StreamConfig])
	Step    int         // steps done so far
	From    LoaderState // that the loader began with: the position, and the order it counts
}

// share is how many of a step's samples are a rank's, -1 if there is no such
// step: ranks take turns, and begin anew with each batch of all.
func (a *OrderAttempt) share(rank int, samples int64) int64 {
	world, total := int64(a.World), int64(a.Total)
	if total == 0 {
		total = samples
		if samples%world != 0 {
			return -1
		}
	}
	if samples < 1 || samples%total != 0 {
		return -1
	}
	return samples / total * ((total - int64(rank) + world - 1) / world)
}

const (
	orderVersion  = 1
	orderEnding   = ".log"
	maxOrderLine  = 64 << 10 // bytes
	maxOrderRank  = 1 << 20
	maxOrderBatch = 1 << 24 // samples of a rank in a step
	maxOrderCount = 1 << 62 // of anything
)

// OrderDir is the directory of the logs in that of a run.
const OrderDir = "order"

// orderFile is the name of a rank's log.
func orderFile(rank int) string { return "rank-" + strconv.Itoa(rank) + orderEnding }

// OrderError says what is wrong with the file of an [OrderLog].
type OrderError struct {
	Path string
	Line int // from 1; 0 where it is not of a line
	Text string
}

func (e *OrderError) Error() string { return "data: order log " + e.where() + ": " + e.Text }

func (e *OrderError) where() string {
	if e.Line == 0 {
		return e.Path
	}
	return e.Path + ":" + strconv.Itoa(e.Line)
}

// OpenOrderLog opens a rank's log in a directory, or makes both. A line that a
// crash has cut off is removed; a log that is damaged otherwise is an
// *[OrderError], for evidence is not written over.
func OpenOrderLog(dir string, rank int) (_ *OrderLog, err error) {
	if rank < 0 || rank >= maxOrderRank {
		return nil, fmt.Errorf("data: order log of rank %d, want 0 to %d", rank, maxOrderRank-1)
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, fmt.Errorf("data: make the directory of order logs: %w", err)
	}
	l := &OrderLog{path: filepath.Join(dir, orderFile(rank)), rank: rank}
	if l.file, err = os.OpenFile(l.path, os.O_RDWR|os.O_CREATE, 0o666); err != nil {
		return nil, fmt.Errorf("data: open an order log: %w", err)
	}
	defer func() {
		if err != nil {
			l.file.Close()
		}
	}()
	whole, err := readOrder(l.path, l.file, func(line int, rec orderRecord, problem string) error {
		if problem != "" {
			return &OrderError{Path: l.path, Line: line, Text: problem + "; move the file away to go on without the proof that it holds"}
		}
		l.chain.text = append(l.chain.text[:0], rec.chain...)
		if rec.kind == orderBegin {
			l.last = rec.attempt
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if err := l.file.Truncate(whole); err != nil {
		return nil, fmt.Errorf("data: remove the torn end of an order log: %w", err)
	}
	if _, err := l.file.Seek(whole, io.SeekStart); err != nil {
		return nil, fmt.Errorf("data: order log: %w", err)
	}
	return l, nil
}

// Last is the number of the last attempt in the log, 0 if there is none. The
// ranks agree on one more than the largest of theirs.
func (l *OrderLog) Last() int64 { return l.last }

// Begin starts an attempt.
func (l *OrderLog) Begin(a OrderAttempt) error {
	switch {
	case a.Attempt <= l.last:
		return l.misused("attempt %d after attempt %d: the ranks must agree on a larger number", a.Attempt, l.last)
	case a.World < 1 || l.rank >= a.World || a.World > maxOrderRank:
		return l.misused("rank %d of %d", l.rank, a.World)
	case a.Total < 0 || a.Total > 0 && a.Total < a.World:
		return l.misused("batches of %d samples for %d ranks", a.Total, a.World)
	case a.Total == 0 && a.Batch < 1 || a.Step < 0 || a.From.Position < 0:
		return l.misused("an attempt with batches of %d, from step %d and position %d", a.Batch, a.Step, a.From.Position)
	case a.From.Order == "" || len(a.From.Order) > maxOrderLine/8:
		return l.misused("an order of %d bytes, want 1 to %d", len(a.From.Order), maxOrderLine/8)
	}
	if a.Total > 0 {
		a.Batch = (a.Total + a.World - 1) / a.World
	}
	l.begun, l.last, l.step, l.position = a, a.Attempt, a.Step, a.From.Position
	l.forget()
	l.line = l.line[:0]
	l.append(orderRecord{
		kind: orderBegin, attempt: a.Attempt, rank: l.rank, world: a.World, batch: a.Batch, total: a.Total,
		step: a.Step, position: a.From.Position, order: a.From.Order,
	})
	return l.write()
}

// Add notes the samples of a batch of the step that is being made, which may
// have several.
func (l *OrderLog) Add(keys []Key, skipped []Skip) {
	l.samples += int64(len(keys))
	for _, k := range keys {
		l.keys += mixKey(k)
	}
	l.skipped = append(l.skipped, skipped...)
}

// Step writes down a step when all its samples have been taken, which left the
// loader at a position. Call it before a collective of the step, such as that
// which agrees on the loss: who has come out of it, and may save the step, then
// knows that all ranks have written it down, however they end. A step that was
// written down and not done is one that is done again.
func (l *OrderLog) Step(step int, position int64) error {
	switch {
	case l.begun.World == 0:
		return l.misused("step %d before an attempt has begun", step)
	case step != l.step+1:
		return l.misused("step %d after step %d", step, l.step)
	case l.samples < 1 || l.samples > maxOrderBatch:
		return l.misused("step %d with %d samples, want 1 to %d", step, l.samples, maxOrderBatch)
	case l.samples != l.begun.share(l.rank, position-l.position):
		return l.misused("step %d leads from position %d to %d, but the rank has added %d samples, one of %d ranks", step, l.position, position, l.samples, l.begun.World)
	}
	l.line = l.line[:0]
	for _, s := range l.skipped {
		l.append(orderRecord{kind: orderSkip, step: step, key: s.Key, by: s.By.Index})
	}
	l.append(orderRecord{kind: orderStep, step: step, position: position, samples: l.samples, keys: l.keys})
	l.step, l.position = step, position
	l.forget()
	return l.write()
}

// End writes down that the run is complete.
func (l *OrderLog) End() error {
	if l.begun.World == 0 {
		return l.misused("the end before an attempt has begun")
	}
	l.line = l.line[:0]
	l.append(orderRecord{kind: orderEnd, step: l.step})
	if err := l.write(); err != nil {
		return err
	}
	return l.Sync()
}

// Sync makes what was written durable. Called before a checkpoint is committed,
// it keeps the proof from falling behind the checkpoint in a loss of power.
func (l *OrderLog) Sync() error {
	if l.failed != nil {
		return l.failed
	}
	if err := l.file.Sync(); err != nil {
		return fmt.Errorf("data: order log: %w", err)
	}
	return nil
}

// Close closes the file. It may be called more than once.
func (l *OrderLog) Close() error {
	if err := l.file.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("data: order log: %w", err)
	}
	return nil
}

func (l *OrderLog) forget() { l.samples, l.keys, l.skipped = 0, 0, l.skipped[:0] }

func (l *OrderLog) misused(format string, args ...any) error {
	return &OrderError{Path: l.path, Text: fmt.Sprintf(format, args...)}
}

// append adds a line to those that are written next.
func (l *OrderLog) append(rec orderRecord) {
	at := len(l.line)
	l.line = rec.appendTo(l.line)
	l.chain.next(l.line[at:])
	l.line = append(l.line, orderChain...)
	l.line = append(l.line, l.chain.text...)
	l.line = append(l.line, '\n')
}

func (l *OrderLog) write() error {
	if l.failed != nil {
		return l.failed
	}
	if _, err := l.file.Write(l.line); err != nil {
		l.failed = fmt.Errorf("data: order log: %w", err)
	}
	return l.failed
}

// orderKind is the first word of a line.
type orderKind string

const (
	orderBegin orderKind = "begin"
	orderStep  orderKind = "step"
	orderSkip  orderKind = "skip"
	orderEnd   orderKind = "end"
)

const (
	orderChain = " chain="
	chainSize  = 16
)

// orderRecord is what a line says; which fields it has depends on its kind.
type orderRecord struct {
	kind     orderKind
	attempt  int64
	rank     int
	world    int
	batch    int
	total    int
	step     int
	position int64
	order    string
	samples  int64
	keys     uint64
	key      Key
	by       int
	chain    string
}

// appendTo writes the line without its chain.
func (r orderRecord) appendTo(b []byte) []byte {
	field := func(name string, v int64) { b = strconv.AppendInt(append(b, name...), v, 10) }
	b = append(b, r.kind...)
	switch r.kind {
	case orderBegin:
		field(" version=", orderVersion)
		field(" attempt=", r.attempt)
		field(" rank=", int64(r.rank))
		field(" world=", int64(r.world))
		field(" batch=", int64(r.batch))
		field(" total=", int64(r.total))
		field(" step=", int64(r.step))
		field(" position=", r.position)
		b = strconv.AppendQuote(append(b, " order="...), r.order)
	case orderSkip:
		field(" step=", int64(r.step))
		field(" epoch=", int64(r.key.Epoch))
		field(" index=", int64(r.key.Index))
		field(" by=", int64(r.by))
	case orderStep:
		field(" number=", int64(r.step))
		field(" position=", r.position)
		field(" samples=", r.samples)
		var keys [8]byte
		binary.BigEndian.PutUint64(keys[:], r.keys)
		b = hex.AppendEncode(append(b, " keys="...), keys[:])
	case orderEnd:
		field(" step=", int64(r.step))
	}
	return b
}

// orderChainHash makes the hashes that end the lines: each is of its line and
// of the hash before.
type orderChainHash struct {
	h    hash.Hash
	sum  []byte
	text []byte // hexadecimal, of the last line; empty before the first
}

// next goes on with a line.
func (c *orderChainHash) next(line []byte) {
	if c.h == nil {
		c.h = sha256.New()
	}
	c.h.Reset()
	c.h.Write(c.text)
	c.h.Write(line)
	c.sum = c.h.Sum(c.sum[:0])
	c.text = hex.AppendEncode(c.text[:0], c.sum[:chainSize/2])
}

// parseOrderLine reads a line, which must be just as it would be written.
func parseOrderLine(line string) (r orderRecord, problem string) {
	body, chain, ok := strings.Cut(line, orderChain)
	if i := strings.LastIndex(line, orderChain); ok {
		body, chain = line[:i], line[i+len(orderChain):]
	}
	if !ok || len(chain) != chainSize {
		return r, "not a line of an order log"
	}
	r.chain = chain
	kind, rest, _ := strings.Cut(body, " ")
	r.kind = orderKind(kind)
	if fields, order, ok := strings.Cut(rest, " order="); ok {
		var err error
		if r.order, err = strconv.Unquote(order); err != nil {
			return r, "an order that is not quoted"
		}
		rest = fields
	}
	for field := range strings.FieldsSeq(rest) {
		name, text, _ := strings.Cut(field, "=")
		if name == "keys" {
			keys, err := strconv.ParseUint(text, 16, 64)
			if err != nil {
				return r, "keys that are no hash"
			}
			r.keys = keys
			continue
		}
		v, err := strconv.ParseInt(text, 10, 64)
		if err != nil || v < 0 || v > maxOrderCount {
			return r, fmt.Sprintf("the field %q is no number", field)
		}
		if !r.set(name, v) {
			return r, fmt.Sprintf("the unknown field %q", field)
		}
		if name == "version" && v != orderVersion {
			return r, fmt.Sprintf("version %d, this program reads version %d", v, orderVersion)
		}
	}
	if string(r.appendTo(nil)) != body {
		return r, "not a line of an order log"
	}
	if r.samples > maxOrderBatch {
		return r, fmt.Sprintf("%d samples of a rank in a step, want at most %d", r.samples, maxOrderBatch)
	}
	if r.kind == orderBegin && (r.attempt < 1 || r.world < 1 || r.world > maxOrderRank || r.rank >= r.world) {
		return r, fmt.Sprintf("attempt %d of rank %d of %d", r.attempt, r.rank, r.world)
	}
	if r.total > 0 && r.total < r.world {
		return r, fmt.Sprintf("batches of %d samples for %d ranks", r.total, r.world)
	}
	return r, ""
}

// set gives a field its value.
func (r *orderRecord) set(name string, v int64) bool {
	switch name {
	case "version":
	case "attempt":
		r.attempt = v
	case "rank":
		r.rank = int(v)
	case "world":
		r.world = int(v)
	case "batch":
		r.batch = int(v)
	case "total":
		r.total = int(v)
	case "step", "number":
		r.step = int(v)
	case "position":
		r.position = v
	case "samples":
		r.samples = v
	case "epoch":
		r.key.Epoch = int(v)
	case "index":
		r.key.Index = int(v)
	case "by":
		r.by = int(v)
	default:
		return false
	}
	return true
}

// readOrder calls each with every line of a log, until that returns an error: a
// record, a problem, or both where a line was changed. It returns where the last whole line ends.
func readOrder(path string, from io.Reader, each func(line int, rec orderRecord, problem string) error) (whole int64, err error) {
	b := bufio.NewReaderSize(from, maxOrderLine)
	var chain orderChainHash
	for line := 1; ; line++ {
		text, err := b.ReadSlice('\n')
		switch {
		case err == io.EOF:
			return whole, nil // what is left was cut off
		case err == bufio.ErrBufferFull:
			return whole, each(line, orderRecord{}, fmt.Sprintf("a line of more than %d bytes", maxOrderLine))
		case err != nil:
			return whole, fmt.Errorf("data: read the order log %s: %w", path, err)
		}
		whole += int64(len(text))
		text = text[:len(text)-1]
		rec, problem := parseOrderLine(string(text))
		if problem != "" {
			rec = orderRecord{chain: rec.chain}
		} else if chain.next(text[:len(text)-len(orderChain)-chainSize]); string(chain.text) != rec.chain {
			problem = "the line was changed, or one before it is missing"
		}
		chain.text = append(chain.text[:0], rec.chain...) // one change is one problem
		if err := each(line, rec, problem); err != nil {
			return whole, err
		}
	}
}
