// SPDX-License-Identifier: Apache-2.0

package table

import (
	"context"
	"fmt"
	"math"

	"github.com/cohort-ml/cohort/data"
)

// Len is the number of rows of the part, those of the share if its table is one.
func (p *Part) Len() int { return len(p.rows) }

// Counts are the numbers of rows that the part has in each share of the table, in
// their order. A whole table is one share.
func (p *Part) Counts() []int {
	if p.counts == nil {
		return []int{len(p.rows)}
	}
	return p.counts
}

// all is the number of rows of the part in all shares.
func (p *Part) all() (n int) {
	for _, count := range p.Counts() {
		n += count
	}
	return n
}

// Name says where the rows come from.
func (p *Part) Name() string { return p.table.Name }

// Notes are those of the table.
func (p *Part) Notes() []string { return p.table.notes }

// Schema says what the columns are.
func (p *Part) Schema() Schema { return p.table.Schema }

// At returns row i of the part, whose slices belong to the table.
func (p *Part) At(i int) Row { return p.table.Row(int(p.rows[i])) }

// Labels returns the labels of the part, in order.
func (p *Part) Labels() []float32 {
	labels := make([]float32, len(p.rows))
	for i, row := range p.rows {
		labels[i] = p.table.labels[row]
	}
	return labels
}

// Get implements data.Dataset: rows are the same in every epoch.
func (p *Part) Get(_ context.Context, key data.Key) (Row, error) {
	if key.Index < 0 || key.Index >= p.Len() {
		return Row{}, fmt.Errorf("table: row %d of %d for %s", key.Index, p.Len(), p.name)
	}
	return p.At(key.Index), nil
}

// Truth returns the logits by which the labels of a generated part were drawn,
// and false for a part that was not generated.
func (p *Part) Truth() (logits []float64, ok bool) {
	if p.table.truth == nil {
		return nil, false
	}
	for _, row := range p.rows {
		logits = append(logits, float64(p.table.truth[row]))
	}
	return logits, true
}

// Scale brings the numbers of rows to mean 0 and deviation 1. It travels with a
// checkpoint, so that a model sees later rows as those that it was trained on.
type Scale struct {
	Mean  []float64 `json:"mean"`
	Width []float64 `json:"width"` // deviation; 1 for a column that does not vary
}

// moments are sums of the numbers of rows.
type moments struct{ Counts, Mean, Squares []float64 }

// Measure returns the scale of a part's numbers, missing ones left out. If the table is
// a [Share], every reader calls it, and the scale is that of all rows.
func Measure(p *Part) (Scale, error) {
	n := len(p.table.Schema.Numbers)
	m, err := inTurn(p.table.share, moments{make([]float64, n), make([]float64, n), make([]float64, n)}, p.measure)
	if err != nil {
		return Scale{}, err
	}
	s := Scale{Mean: m.Mean, Width: make([]float64, n)}
	for j := range s.Width {
		if s.Width[j] = math.Sqrt(m.Squares[j] / max(m.Counts[j], 1)); s.Width[j] == 0 {
			s.Width[j] = 1
		}
	}
	return s, nil
}

// measure adds the part's rows to moments.
func (p *Part) measure(m moments) moments {
	for i := range p.rows {
		for j, v := range p.At(i).Numbers {
			if v := float64(v); v == v {
				// Welford's update stays exact where the mean is far from zero.
				m.Counts[j]++
				d := v - m.Mean[j]
				m.Mean[j] += d / m.Counts[j]
				m.Squares[j] += d * (v - m.Mean[j])
			}
		}
	}
	return m
}

// Unscaled is the scale that leaves a schema's numbers as they are.
func Unscaled(schema Schema) Scale {
	s := Scale{Mean: make([]float64, len(schema.Numbers)), Width: make([]float64, len(schema.Numbers))}
	for i := range s.Width {
		s.Width[i] = 1
	}
	return s
}

// Check says whether the scale, which may come from a file, fits a schema.
func (s Scale) Check(schema Schema) error {
	if len(s.Mean) != len(schema.Numbers) || len(s.Width) != len(schema.Numbers) {
		return fmt.Errorf("table: a scale of %d means and %d widths for %d numbers", len(s.Mean), len(s.Width), len(schema.Numbers))
	}
	for i, w := range s.Width {
		if !(w > 0) || math.IsInf(w, 0) || math.IsNaN(s.Mean[i]) || math.IsInf(s.Mean[i], 0) {
			return fmt.Errorf("table: the scale of %s has mean %v and width %v: want finite ones, and a width above 0", schema.Numbers[i], s.Mean[i], w)
		}
	}
	return nil
}

// Batch is rows as a model takes them.
type Batch struct {
	Rows    int
	Labels  []float32 // [rows]
	Numbers []float32 // [rows, numbers], scaled
	IDs     [][]int64 // [categories][rows]
}

// Collate makes a batch of rows of one table.
func (s Scale) Collate(rows []Row) (Batch, error) {
	b := Batch{Rows: len(rows), Labels: make([]float32, len(rows))}
	if len(rows) == 0 {
		return b, fmt.Errorf("table: a batch of no rows")
	}
	numNumbers, numCategories := len(rows[0].Numbers), len(rows[0].Categories)
	if numNumbers != len(s.Mean) {
		return b, fmt.Errorf("table: a scale of %d numbers for rows of %d", len(s.Mean), numNumbers)
	}
	b.Numbers = make([]float32, 0, len(rows)*numNumbers)
	ids := make([]int64, len(rows)*numCategories)
	for j := range numCategories {
		b.IDs = append(b.IDs, ids[j*len(rows):(j+1)*len(rows)])
	}
	for i, row := range rows {
		b.Labels[i] = row.Label
		for j, v := range row.Numbers {
			scaled := float32((float64(v) - s.Mean[j]) / s.Width[j])
			if scaled != scaled {
				scaled = 0 // missing: the mean
			}
			b.Numbers = append(b.Numbers, scaled)
		}
		for j, v := range row.Categories {
			b.IDs[j][i] = int64(v)
		}
	}
	return b, nil
}
