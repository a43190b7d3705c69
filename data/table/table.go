// SPDX-License-Identifier: Apache-2.0

// Package table feeds recommenders: rows of a CSV file as numbers, categories
// and a label.
//
// A [Schema] says which columns are which; [Infer] proposes one from the first
// rows. A [Reader] streams typed rows out of one file or many, compressed or
// not, and stops at the first wrong one with a *[RowError], which has the file,
// the line and the column. [Read] keeps all rows in a [Table]: four bytes a
// value, so that text larger than memory mostly fits. [Generate] makes a table
// of a known truth, for which the best possible figures are known too.
//
// [ReadShare] reads a part of the rows for each of several readers, such as the ranks
// of a job, so that the text is read once in all and each reader keeps a part.
//
// A Table is parted into two sets that do not overlap by [Table.Split]; a
// [Part] is a data.Dataset of [Row]s. [Scale] brings numbers to mean 0 and
// deviation 1 by the training part's figures, and its Collate makes batches.
//
// Categories are hashed: a value becomes a row of an embedding table of
// Schema.Buckets rows, by [Schema.Bucket]. Nothing has to be counted before,
// values that come later need no special care, and two values may meet in a
// row. Small whole numbers do not: they are their own hash.
//
// Missing values are numbers that are NaN until they are scaled, when they
// become the mean, and bucket 0 of a category. A label must not be missing.
//
// Tables, parts and scales do not change after they are made and may be shared
// by goroutines; the slices of a Row belong to its table. A Reader belongs to
// one goroutine.
package table

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc64"
	"io"
	"math"
	"path/filepath"
)

// Row is one row of a table.
type Row struct {
	Label      float32   // 0 or 1; NaN of a schema without one
	Numbers    []float32 // in the schema's order; NaN where missing
	Categories []int32   // buckets, in the schema's order; 0 where missing
}

// Table has rows in memory.
type Table struct {
	Schema Schema
	Name   string // where it comes from, for messages

	labels     []float32
	numbers    []float32 // [rows, numbers]
	categories []int32   // [rows, categories]
	truth      []float32 // of generated tables: the logit that each label was drawn by
	digest     uint64    // of all values, also those of other shares
	bytes      []byte    // memory for a row of the digest
	notes      []string

	share Share // of the rows that are here
	first int   // the number of the first of them among all rows
	total int   // of all rows; 0 if all are here
}

// Notes are those of the [Reader] that has read the table.
func (t *Table) Notes() []string { return t.notes }

// Len is the number of rows, those of the share if the table is one.
func (t *Table) Len() int { return len(t.labels) }

// all is the number of rows of all shares.
func (t *Table) all() int { return max(t.total, len(t.labels)) }

// Row returns row i, whose slices belong to the table.
func (t *Table) Row(i int) Row {
	n, c := len(t.Schema.Numbers), len(t.Schema.Categories)
	return Row{Label: t.labels[i], Numbers: t.numbers[i*n : (i+1)*n : (i+1)*n], Categories: t.categories[i*c : (i+1)*c : (i+1)*c]}
}

// maxRows is how many rows a part can tell apart.
const maxRows = math.MaxInt32

// Read reads a whole file or directory as [Open] does, until ctx ends.
func Read(ctx context.Context, path string, f Format, s Schema) (*Table, error) {
	r, err := Open(path, f, s)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	t := &Table{Schema: s, Name: path}
	if err := t.take(ctx, r); err != nil {
		return nil, err
	}
	if t.Len() == 0 {
		return nil, fmt.Errorf("table: %s has no rows", path)
	}
	for i := range t.Len() {
		t.mix(t.Row(i))
	}
	t.notes = r.Notes()
	return t, nil
}

// take takes the rows of a reader up to its end, until ctx ends.
func (t *Table) take(ctx context.Context, r *Reader) error {
	for {
		row, err := r.shared()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		t.append(row)
		if n := t.Len(); n%(1<<14) == 0 && ctx.Err() != nil {
			return fmt.Errorf("table: reading %s: stopped after %d rows: %w", t.Name, n, context.Cause(ctx))
		} else if n > maxRows {
			return fmt.Errorf("table: %s has more than %d rows: take a part of it", t.Name, maxRows)
		}
	}
}

var digests = crc64.MakeTable(crc64.ECMA)

// append takes a copy of a row.
func (t *Table) append(row Row) {
	t.labels = append(t.labels, row.Label)
	t.numbers = append(t.numbers, row.Numbers...)
	t.categories = append(t.categories, row.Categories...)
}

// append appends the bytes of a row's values.
func (r Row) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, math.Float32bits(r.Label))
	for _, v := range r.Numbers {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	for _, v := range r.Categories {
		b = binary.LittleEndian.AppendUint32(b, uint32(v))
	}
	return b
}

// Part is some of the rows of a table, as a data.Dataset.
type Part struct {
	table  *Table
	name   string
	rows   []int32
	counts []int // rows of the part in each share; nil if all are here
}

// All is the whole table as one part.
func (t *Table) All() *Part {
	p := &Part{table: t, name: "all", rows: make([]int32, t.Len())}
	for i := range p.rows {
		p.rows[i] = int32(i)
	}
	return p
}

// Split parts the table: about share of the rows, in 0..1, are for validation,
// the others for training. A row's part depends on its position alone, so rows
// that are added at the end of a file do not move those before them. A part
// that would be empty is an error. Of a table that is a [Share], the parts have its
// rows alone, and every reader calls Split.
func (t *Table) Split(share float64) (training, validation *Part, err error) {
	if !(share > 0 && share < 1) {
		return nil, nil, fmt.Errorf("table: a share of %v of %s for validation: want one between 0 and 1", share, t.Name)
	}
	training, validation = &Part{table: t, name: "training"}, &Part{table: t, name: "validation"}
	for i := range t.Len() {
		p := training
		if float64(scramble(uint64(t.first+i))>>11) < share*(1<<53) {
			p = validation
		}
		p.rows = append(p.rows, int32(i))
	}
	if !t.share.isAll() {
		counts, err := tell(t.share, [2]int{training.Len(), validation.Len()})
		if err != nil {
			return nil, nil, err
		}
		for _, n := range counts {
			training.counts, validation.counts = append(training.counts, n[0]), append(validation.counts, n[1])
		}
	}
	for _, p := range []*Part{training, validation} {
		if p.all() == 0 {
			return nil, nil, fmt.Errorf("table: of the %d rows of %s none is left for %s at a share of %v for validation: use more rows or another share", t.all(), t.Name, p.name, share)
		}
	}
	return training, validation, nil
}

// scramble is a permutation of the 64-bit numbers that looks random: the
// finisher of SplitMix64 (Steele, Lea and Flood 2014).
func scramble(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Contents returns number and checksum of the rows of all shares, by the name of the table.
func (p *Part) Contents(context.Context) (map[string]string, error) {
	return map[string]string{filepath.Base(p.table.Name): fmt.Sprintf("%d rows, checksum %016x", p.table.all(), p.table.digest)}, nil
}

// Fingerprint describes the rows: a state of a loader belongs to equal ones.
func (p *Part) Fingerprint() string {
	return fmt.Sprintf("table rows=%d %s=%d crc=%016x", p.table.all(), p.name, p.all(), p.table.digest)
}
