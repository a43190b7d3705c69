// SPDX-License-Identifier: Apache-2.0

package models

import (
	"errors"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// TestNumberOfInputs: a model says what it takes where it got another number.
func TestNumberOfInputs(t *testing.T) {
	b, ids := &nn.Build{}, tensor.FromInt64([]int64{1, 2}, 1, 2)
	for want, c := range map[string]struct {
		module nn.ModuleN
		inputs []*tensor.Tensor
	}{
		"BERT":     {NewBERT(b, BERTConfig{Vocab: 5, Context: 4, Width: 4, Hidden: 4, Layers: 1, Heads: 2}), []*tensor.Tensor{ids, nil, nil, nil}},
		"MoEBlock": {NewMoETransformer(b, smallMoE()).Model.Layers[0], []*tensor.Tensor{ids, ids}},
		"Word2Vec": {NewWord2Vec(b, 5, 2), []*tensor.Tensor{ids, ids}},
	} {
		_, err := nn.Backward(t.Context(), func(ctx *nn.Ctx) *tensor.Tensor { return ctx.CallN(c.module, c.inputs...)[0] })
		var e *tensor.Error
		if !errors.As(err, &e) || e.Op != want || !strings.Contains(e.Msg, "takes") {
			t.Errorf("%s: got %v", want, err)
		}
	}
}
