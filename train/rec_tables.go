// SPDX-License-Identifier: Apache-2.0

package train

import (
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/rpc/ps"
	"github.com/cohort-ml/cohort/rpc/ps/rows"
	"github.com/cohort-ml/cohort/tensor"
)

// schemas returns what the tables of a recommender are on parameter servers. A run without
// servers takes the first values of its rows from them, so that a row begins with the same
// values wherever it lies.
func (c RecConfig) schemas(model nn.ModuleN) []rows.Schema {
	var out []rows.Schema
	for _, p := range ps.EmbeddingWeights(model) {
		s := ps.TableOf(p)
		s.Optimizer = rows.Optimizer{Kind: rows.Adagrad, LR: c.LR, LRDecay: c.Decay}
		switch {
		case c.Model == recDLRM: // as models.NewDLRM
			s.Init = rows.Init{Kind: rows.Uniform, Scale: 1 / math.Sqrt(float64(p.Data().Dim(0))), Seed: uint64(c.Seed)}
		case !strings.HasSuffix(s.Name, "_bias.weight"): // as models.NewMatrixFactorization, whose biases are 0
			s.Init = rows.Init{Kind: rows.Normal, Scale: 0.1, Seed: uint64(c.Seed)}
		}
		out = append(out, s)
	}
	return out
}

// firstRows writes the first values of tables into what this rank holds of a model.
func firstRows(tables []rows.Schema, parts []checkpoint.Part) error {
	for _, p := range parts {
		at := slices.IndexFunc(tables, func(s rows.Schema) bool { return s.Name == p.Name })
		if at < 0 || p.Away {
			continue
		}
		if p.Mesh == nil {
			fillRows(tables[at], p.Local, 0, 0)
			continue
		}
		boxes, err := p.Layout.Boxes()
		if err != nil {
			return fmt.Errorf("the first values of %s: %w", p.Name, err)
		}
		for _, b := range boxes {
			to := p.Local.Narrow(0, b.LocalStart[0], b.Shape[0]).Narrow(1, b.LocalStart[1], b.Shape[1])
			fillRows(tables[at], to, b.Start[0], b.Start[1])
		}
	}
	return nil
}

// fillRows writes first values into a part of a table, which begins at a row and a column of it.
func fillRows(s rows.Schema, to *tensor.Tensor, row, column int) {
	const block = 1 << 12 // rows that a goroutine writes at a time
	var wg sync.WaitGroup
	var mu sync.Mutex // of the tensor: a write to a part is one of all of it
	limit := make(chan struct{}, runtime.GOMAXPROCS(0))
	numRows, width := to.Dim(0), to.Dim(1)
	for at := 0; at < numRows; at += block {
		limit <- struct{}{}
		wg.Go(func() {
			defer func() { <-limit }()
			n := min(block, numRows-at)
			values, whole := make([]float32, n*width), make([]float32, s.Width)
			for i := range n {
				s.First(whole, int64(row+at+i))
				copy(values[i*width:], whole[column:column+width])
			}
			mu.Lock()
			defer mu.Unlock()
			to.Narrow(0, at, n).CopyFrom(tensor.FromFloat32(values, n, width))
		})
	}
	wg.Wait()
}
