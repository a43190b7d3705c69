// SPDX-License-Identifier: Apache-2.0

package models

import (
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// MatrixFactorizationConfig is the size of a [MatrixFactorization].
type MatrixFactorizationConfig struct {
	Users, Items int  // rows of the tables
	Width        int  // of a user's and an item's vector
	Sparse       bool // tables take their gradients by rows
}

// Validate reports a size that makes no model.
func (g MatrixFactorizationConfig) Validate() error {
	return checkSizes("matrix factorization", []size{{"number of users", g.Users, 1 << 40}, {"number of items", g.Items, 1 << 40}, {"width", g.Width, 1 << 20}})
}

// MatrixFactorization scores users and items by the product of their vectors,
// and by how high each of them scores with everyone (Koren, Bell and Volinsky
// 2009, Matrix Factorization Techniques for Recommender Systems, equation 4):
//
//	score = bias + user_bias + item_bias + user · item
type MatrixFactorization struct {
	Config   MatrixFactorizationConfig `name:"-"`
	User     *nn.Embedding             `name:"user"`      // [users, width]
	Item     *nn.Embedding             `name:"item"`      // [items, width]
	UserBias *nn.Embedding             `name:"user_bias"` // [users, 1]
	ItemBias *nn.Embedding             `name:"item_bias"` // [items, 1]
	Bias     *nn.Parameter             `name:"bias"`      // [1]
}

// NewMatrixFactorization returns a model whose vectors are drawn from a normal
// distribution of deviation 0.1 and whose biases are 0. It panics when the
// configuration is not valid.
func NewMatrixFactorization(b *nn.Build, g MatrixFactorizationConfig) *MatrixFactorization {
	if err := g.Validate(); err != nil {
		panic(tensor.NewError("new matrix factorization", nil, "%v", err))
	}
	m := &MatrixFactorization{
		Config:   g,
		User:     &nn.Embedding{Weight: b.Normal(0.1, g.Users, g.Width)},
		Item:     &nn.Embedding{Weight: b.Normal(0.1, g.Items, g.Width)},
		UserBias: &nn.Embedding{Weight: b.Empty(g.Users, 1)},
		ItemBias: &nn.Embedding{Weight: b.Empty(g.Items, 1)},
		Bias:     b.Empty(1),
	}
	for _, table := range []*nn.Embedding{m.User, m.Item, m.UserBias, m.ItemBias} {
		table.Weight.Sparse = g.Sparse
	}
	return m
}

// ForwardN takes int64 users [batch] and items [batch] and returns scores
// [batch]: logits, or ratings, by the loss that they are given to.
func (m *MatrixFactorization) ForwardN(c *nn.Ctx, in ...*tensor.Tensor) []*tensor.Tensor {
	nn.WantInputs("MatrixFactorization", in, "users and items", 2)
	users, items := in[0], in[1]
	taste := c.Call(m.User, users).Mul(c.Call(m.Item, items)).Sum(1)
	alone := c.Call(m.UserBias, users).Add(c.Call(m.ItemBias, items)).Flatten(0, 1)
	return []*tensor.Tensor{taste.Add(alone).Add(c.Param(m.Bias))}
}
