// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// Progress is how far the training of a job has come: what a server knows beside its rows.
// It takes a job to another number of servers.
type Progress struct {
	Workers     int          `json:"workers,omitempty"` // 0: nobody has said
	Consistency *Consistency `json:"consistency,omitempty"`
	Steps       uint64       `json:"steps"`   // the largest number of steps that a worker has made
	Applied     int64        `json:"applied"` // steps that have been applied; asynchronous: pushes or batches
	Next        []int64      `json:"next"`    // by worker: the step that it pushes next
	Left        []bool       `json:"left"`    // by worker: it makes no more steps
	Rates       []float64    `json:"rates"`   // learning rates by table, 0 for the optimizer's
}

// MergeProgress reads how far a job has come from the states of snapshots of all its servers,
// in the order of their numbers. It refuses servers that are between two steps: the rows of
// one have the pushes of a step that others lack.
func MergeProgress(states ...[]byte) (Progress, error) {
	var all Progress
	if len(states) == 0 {
		return all, errors.New("ps: there is no state of a server")
	}
	for i, b := range states {
		s, p, err := readState(b, len(states))
		if err == nil {
			err = all.merge(s, p, i == 0)
		}
		if err != nil {
			return all, fmt.Errorf("ps: server %d: %w", i, err)
		}
	}
	return all, nil
}

// readState reads what a server knows beside its rows, without making its tables.
func readState(b []byte, servers int) (*settings, *Progress, error) {
	r := &entryReader{b: b}
	var saved savedState
	if err := json.Unmarshal(r.take(int(r.uint32())), &saved); err != nil || r.bad {
		return nil, nil, errors.Join(errors.New("the state of a snapshot cannot be read"), err)
	}
	if saved.Version != version {
		return nil, nil, fmt.Errorf("the snapshot has version %d, not %d", saved.Version, version)
	}
	set, err := decodeSettings(saved.Settings)
	if err != nil {
		return nil, nil, err
	}
	if set.Servers != servers {
		return nil, nil, fmt.Errorf("the snapshot is of one of %d servers, not of %d", set.Servers, servers)
	}
	if len(r.b) > 0 {
		return nil, nil, errors.New("pushes of a step wait for those of other workers: let the workers make the step, or leave, and take the snapshots then")
	}
	return &set, &Progress{set.Workers, set.Consistency, saved.Step, saved.Applied, saved.Next, saved.Left, saved.Rates}, nil
}

// merge takes what a further server knows.
func (p *Progress) merge(set *settings, q *Progress, first bool) error {
	if first {
		*p = *q
		return nil
	}
	if p.Workers != q.Workers || len(p.Next) != len(q.Next) || len(p.Left) != len(q.Left) || len(p.Rates) != len(q.Rates) {
		return fmt.Errorf("it knows %d workers and %d tables, and server 0 knows %d and %d", q.Workers, len(q.Rates), p.Workers, len(p.Rates))
	}
	if set.Consistency != nil && set.Consistency.mode() == ModeSynchronous && (p.Applied != q.Applied || !slices.Equal(p.Next, q.Next)) {
		return fmt.Errorf("it has applied %d steps, and the next steps of its workers are %d; server 0 has applied %d, and has %d: start the servers and the workers again, let them end a step, and take the snapshots then", q.Applied, q.Next, p.Applied, p.Next)
	}
	p.Steps, p.Applied = max(p.Steps, q.Steps), max(p.Applied, q.Applied)
	for w := range p.Next {
		p.Next[w] = max(p.Next[w], q.Next[w])
		p.Left[w] = p.Left[w] && q.Left[w]
	}
	for t := range p.Rates {
		if p.Rates[t] == 0 {
			p.Rates[t] = q.Rates[t]
		}
	}
	return nil
}

// WithProgress makes a new server go on where servers of another number have ended. The
// server must have all tables ([WithTables]), and no data yet.
func WithProgress(p Progress) Option {
	return func(o *options) error {
		o.forServer = "WithProgress"
		if p.Workers > 0 && p.Consistency != nil {
			if err := o.workers(p.Workers, *p.Consistency); err != nil {
				return err
			}
		}
		o.progress = &p
		return nil
	}
}

// fits returns what is wrong with a progress for a state.
func (p *Progress) fits(s *state) error {
	if s.step > 0 || s.applied > 0 || len(s.clients) > 0 {
		return errors.New("the server has heard of pushes: give progress to a new one")
	}
	if len(p.Next) != len(s.next) || len(p.Left) != len(s.left) || len(p.Rates) != len(s.rates) || p.Applied < 0 {
		return fmt.Errorf("the progress is of %d workers and %d tables, and the server has %d and %d", len(p.Next), len(p.Rates), len(s.next), len(s.rates))
	}
	return nil
}

// applyProgress does what an entry with a progress says.
func (s *state) applyProgress(p *Progress) error {
	if err := p.fits(s); err != nil {
		return err
	}
	s.step, s.applied, s.next, s.left, s.rates = p.Steps, p.Applied, slices.Clone(p.Next), slices.Clone(p.Left), slices.Clone(p.Rates)
	return nil
}

func (p *Progress) encode() []byte {
	text, err := json.Marshal(p)
	if err != nil {
		panic(fmt.Sprintf("ps: progress: %v", err)) // of plain values
	}
	return append([]byte{entryProgress}, text...)
}

func decodeProgress(text []byte) (*Progress, error) {
	p := new(Progress)
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(p); err != nil {
		return nil, fmt.Errorf("progress: %w", err)
	}
	return p, nil
}
