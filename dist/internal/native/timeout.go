// SPDX-License-Identifier: Apache-2.0

package native

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/dist/operation"
)

// Ranks that wait together for another one run out of time at about the same moment. The
// first to do so fails the group and tells the others for which ranks it has waited. The
// error of a rank in the same call is then a time-out too.

const (
	// maxTimedOut is the most missing ranks that are told, maxOpName the most bytes of
	// the operation's name.
	maxTimedOut  = 64
	maxOpName    = 32
	timedOutHead = 8 + 1 + 1
)

// timedOut is a call of a group that has run out of time.
type timedOut struct {
	op      string
	seq     uint64
	missing []int // ranks
	why     string
}

// encode makes the text of a fault of kindTimeout.
func (o *timedOut) encode() string {
	b := binary.LittleEndian.AppendUint64(nil, o.seq)
	b = append(b, byte(len(o.op)), byte(len(o.missing)))
	b = append(b, o.op...)
	for _, r := range o.missing {
		b = binary.LittleEndian.AppendUint32(b, uint32(r))
	}
	b = append(b, o.why...)
	return string(b[:min(len(b), maxFaultText)])
}

// parseTimedOut reads what encode wrote.
func parseTimedOut(text string, numRanks int) (*timedOut, error) {
	if len(text) < timedOutHead {
		return nil, fmt.Errorf("a time-out of %d bytes", len(text))
	}
	b := []byte(text)
	o := &timedOut{seq: binary.LittleEndian.Uint64(b)}
	ofOp, num := int(b[8]), int(b[9])
	b = b[timedOutHead:]
	if ofOp > maxOpName || num == 0 || num > maxTimedOut || len(b) < ofOp+4*num {
		return nil, fmt.Errorf("a time-out of %d bytes, with %d ranks", len(text), num)
	}
	o.op, b = string(b[:ofOp]), b[ofOp:]
	for range num {
		r := binary.LittleEndian.Uint32(b)
		if uint64(r) >= uint64(numRanks) {
			return nil, fmt.Errorf("a time-out for rank %d of %d", r, numRanks)
		}
		o.missing, b = append(o.missing, int(r)), b[4:]
	}
	o.why = string(b)
	return o, nil
}

// timeoutText returns what to tell the others of a time-out. ok is false if it would tell
// them nothing about their own calls.
func (cfg *Config) timeoutText(e *fault.TimeoutError) (text string, ok bool) {
	if e.Group != cfg.Group || e.Seq == 0 || !e.Timeout() || len(e.Missing) == 0 || len(e.Missing) > maxTimedOut || len(e.Op) > maxOpName {
		return "", false
	}
	o := &timedOut{op: e.Op, seq: e.Seq, why: e.Error()}
	for _, m := range e.Missing {
		r := slices.IndexFunc(cfg.Members, func(of fault.Member) bool { return of.Rank == m.Rank })
		if r < 0 {
			return "", false
		}
		o.missing = append(o.missing, r)
	}
	return o.encode(), true
}

// timeoutError returns the error of a call that ends because another rank has run out of
// time. It is a time-out if that rank waited for others in the same call.
func (cfg *Config) timeoutError(c *operation.Call, who fault.Member, text string) error {
	o, err := parseTimedOut(text, len(cfg.Members))
	if err != nil {
		return fmt.Errorf("could not read %w", err)
	}
	if c == nil || isMessage(c) || c.Op.String() != o.op || c.Seq != o.seq || slices.Contains(o.missing, cfg.Rank) {
		return fmt.Errorf("%s", strings.ToValidUTF8(o.why, "?"))
	}
	e := &fault.TimeoutError{Group: cfg.Group, Op: o.op, Seq: o.seq,
		Cause: fmt.Errorf("%v ran out of time first: %w", who, context.DeadlineExceeded)}
	for _, r := range o.missing {
		e.Missing = append(e.Missing, cfg.Members[r])
	}
	return e
}
