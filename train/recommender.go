// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/data/table"
	"github.com/cohort-ml/cohort/models"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// The kinds of models of [Rec].
const (
	recDLRM = "dlrm"
	recMF   = "mf"
)

var recommenders = []string{recDLRM, recMF}

// RecommenderConfig describes a trained recommender, besides its weights. It is
// config.json in checkpoints of [Rec]. The model takes rows that are read by Schema
// and scaled by Scale.
type RecommenderConfig struct {
	ModelType string       `json:"model_type"` // dlrm or mf
	Width     int          `json:"width"`      // of a category's vectors
	Bottom    []int        `json:"bottom"`     // of a dlrm, before the last, which is Width
	Top       []int        `json:"top"`        // of a dlrm, before the last, which is 1
	Schema    table.Schema `json:"schema"`
	Scale     table.Scale  `json:"scale"`
}

// Recommender scores the rows of a table. Its model is a [models.DLRM] of all
// columns or a [models.MatrixFactorization] of the first two categories.
type Recommender struct {
	Config RecommenderConfig
	Model  nn.ModuleN

	served *servedTables // that the model has on servers, nil for none
}

// NewRecommender returns a new recommender. Because a configuration may come from a
// file, one that makes no recommender is an error.
func NewRecommender(b *nn.Build, c RecommenderConfig) (*Recommender, error) {
	if err := c.Schema.Validate(); err != nil {
		return nil, err
	}
	if err := c.Scale.Check(c.Schema); err != nil {
		return nil, err
	}
	numCategories := len(c.Schema.Categories)
	switch c.ModelType {
	case recDLRM:
		if numCategories == 0 {
			return nil, errors.New("a dlrm needs at least one category: name columns of names or ids (--categories)")
		}
		g := models.DLRMConfig{Width: c.Width, Sparse: true}
		for range numCategories {
			g.Tables = append(g.Tables, c.Schema.Buckets)
		}
		g.Bottom = append(append([]int{max(1, len(c.Schema.Numbers))}, c.Bottom...), c.Width)
		g.Top = append(append([]int{}, c.Top...), 1)
		if err := g.Validate(); err != nil {
			return nil, err
		}
		return &Recommender{Config: c, Model: models.NewDLRM(b, g)}, nil
	case recMF:
		if numCategories < 2 {
			return nil, fmt.Errorf("matrix factorization needs two categories, users and items, and there are %d, %q: name two columns (--categories USER,ITEM)", numCategories, c.Schema.Categories)
		}
		g := models.MatrixFactorizationConfig{Users: c.Schema.Buckets, Items: c.Schema.Buckets, Width: c.Width, Sparse: true}
		if err := g.Validate(); err != nil {
			return nil, err
		}
		return &Recommender{Config: c, Model: models.NewMatrixFactorization(b, g)}, nil
	}
	return nil, fmt.Errorf("there is no recommender %q, only %q", c.ModelType, recommenders)
}

// OpenRecommender loads a recommender from a checkpoint of [Rec].
func OpenRecommender(ck *checkpoint.Checkpoint) (*Recommender, error) {
	fail := func(err error) (*Recommender, error) {
		return nil, fmt.Errorf("load a recommender from %s: %w", ck.Path, err)
	}
	if err := wantTask(ck, "rec"); err != nil {
		return fail(err)
	}
	text, err := ck.ReadFile(configFile, 16<<20)
	if err != nil {
		return fail(err)
	}
	var c RecommenderConfig
	if err := json.Unmarshal(text, &c); err != nil {
		return fail(fmt.Errorf("%s: %w", configFile, err))
	}
	// The configuration is only what a file says: nothing is allocated for it
	// before the weights' file agrees.
	plan, err := NewRecommender(&nn.Build{Device: tensor.Meta}, c)
	if err != nil {
		return fail(fmt.Errorf("%s: %w", configFile, err))
	}
	if err := matchModel(ck, plan.Model); err != nil {
		return fail(err)
	}
	r, err := NewRecommender(&nn.Build{}, c)
	if err != nil {
		return fail(err)
	}
	if err := ck.LoadTensors(checkpoint.Model, nn.StateDict(r.Model).All()); err != nil {
		return fail(err)
	}
	return r, nil
}

// Logits runs a model, which may be r.Model in a wrapper, on a batch: [rows].
func (r *Recommender) Logits(c *nn.Ctx, model nn.ModuleN, b table.Batch) *tensor.Tensor {
	in := r.served.take(b)
	if in == nil {
		in = r.inputs(tensor.On(c.Device()), b)
	}
	if r.Config.ModelType == recMF {
		return c.CallN(model, in...)[0]
	}
	return c.CallN(model, in...)[0].Flatten(0, 1)
}

// inputs are what the model takes of a batch.
func (r *Recommender) inputs(on tensor.Creation, b table.Batch) []*tensor.Tensor {
	if r.Config.ModelType == recMF {
		return []*tensor.Tensor{on.FromInt64(b.IDs[0]), on.FromInt64(b.IDs[1])}
	}
	dense := on.Zeros(b.Rows, 1) // where there are no numbers
	if n := len(r.Config.Schema.Numbers); n > 0 {
		dense = on.FromFloat32(b.Numbers, b.Rows, n)
	}
	in := []*tensor.Tensor{dense}
	first := make([]int64, b.Rows) // each bag has one id
	for i := range first {
		first[i] = int64(i)
	}
	offsets := on.FromInt64(first)
	for _, ids := range b.IDs {
		in = append(in, on.FromInt64(ids), offsets)
	}
	return in
}

// Score returns the logits of rows from..to-1 of a part, batch rows at a time.
func (r *Recommender) Score(ctx context.Context, p *table.Part, from, to, batch int, opts ...nn.CtxOption) ([]float64, error) {
	return r.score(ctx, r.Model, turns{}, p, from, to, batch, opts...)
}

// score is Score by a model that may be r.Model in a wrapper.
func (r *Recommender) score(ctx context.Context, model nn.ModuleN, together turns, p *table.Part, from, to, batch int, opts ...nn.CtxOption) ([]float64, error) {
	logits := make([]float64, 0, max(0, to-from))
	rows := make([]table.Row, 0, max(0, min(batch, to-from)))
	for i := from; ; i += batch {
		if pass, err := together.next(ctx, i < to); err != nil {
			return nil, err
		} else if !pass {
			return logits, nil
		}
		rows = rows[:0]
		for j := i; j < min(i+batch, to); j++ {
			rows = append(rows, p.At(j))
		}
		own := len(logits) + len(rows)
		if len(rows) == 0 { // for the others
			rows = append(rows, r.blank())
		}
		b, err := r.Config.Scale.Collate(rows)
		if err != nil {
			return nil, err
		}
		if logits, err = r.scoreBatch(ctx, model, logits, b, opts); err != nil {
			return nil, fmt.Errorf("rows %d to %d: %w", i, i+len(rows)-1, err)
		}
		logits = logits[:own]
	}
}

// blank is a row of missing values.
func (r *Recommender) blank() table.Row {
	s := r.Config.Schema
	return table.Row{Numbers: make([]float32, len(s.Numbers)), Categories: make([]int32, len(s.Categories))}
}

func (r *Recommender) scoreBatch(ctx context.Context, model nn.ModuleN, logits []float64, b table.Batch, opts []nn.CtxOption) (_ []float64, err error) {
	c := nn.Evaluation(ctx, opts...)
	defer c.Close()
	defer c.Recover(&err)
	if r.served != nil {
		c = c.With(r.served.model)
	}
	for _, v := range r.Logits(c, model, b).To(tensor.Float32).Float32s() {
		logits = append(logits, float64(v))
	}
	return logits, nil
}
