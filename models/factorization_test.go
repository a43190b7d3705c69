// SPDX-License-Identifier: Apache-2.0

package models_test

import (
	"math"
	"testing"

	"github.com/cohort-ml/cohort/models"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// TestMatrixFactorization: scores and gradients are those of the formula, and a
// table's gradient has the rows that were looked up.
func TestMatrixFactorization(t *testing.T) {
	const width = 3
	g := models.MatrixFactorizationConfig{Users: 5, Items: 4, Width: width, Sparse: true}
	b := &nn.Build{Generator: tensor.NewGenerator(1)}
	m := models.NewMatrixFactorization(b, g)
	for _, p := range []*nn.Parameter{m.UserBias.Weight, m.ItemBias.Weight, m.Bias} {
		b.Generator.Normal(p.Data(), 0, 1)
	}
	users, items := []int64{4, 0, 4}, []int64{1, 3, 3}
	var scores []float32
	loss, err := nn.Backward(t.Context(), func(c *nn.Ctx) *tensor.Tensor {
		y := c.CallN(m, tensor.FromInt64(users), tensor.FromInt64(items))[0]
		scores = y.Float32s()
		return y.Square().Sum()
	})
	if err != nil {
		t.Fatal(err)
	}
	u, i := m.User.Weight.Data().Float32s(), m.Item.Weight.Data().Float32s()
	var want, biasGrad float64
	userGrad := make([]float64, g.Users*width)
	for n := range users {
		y := float64(m.Bias.Data().Float32s()[0]) + float64(m.UserBias.Weight.Data().Float32s()[users[n]]) + float64(m.ItemBias.Weight.Data().Float32s()[items[n]])
		for j := range width {
			y += float64(u[int(users[n])*width+j]) * float64(i[int(items[n])*width+j])
		}
		if math.Abs(y-float64(scores[n])) > 1e-5 {
			t.Errorf("score of user %d and item %d is %v, want %v", users[n], items[n], scores[n], y)
		}
		want += y * y
		biasGrad += 2 * y
		for j := range width {
			userGrad[int(users[n])*width+j] += 2 * y * float64(i[int(items[n])*width+j])
		}
	}
	if math.Abs(loss-want) > 1e-4 || math.Abs(m.Bias.Grad().Item()-biasGrad) > 1e-4 {
		t.Errorf("loss %v and gradient of the bias %v, want %v and %v", loss, m.Bias.Grad().Item(), want, biasGrad)
	}
	rows := m.User.Weight.RowGrad()
	if rows == nil || m.User.Weight.Grad() != nil {
		t.Fatal("the table's gradient is dense")
	}
	for k, got := range rows.Dense().Float32s() {
		if math.Abs(float64(got)-userGrad[k]) > 1e-5 {
			t.Errorf("element %d of the users' gradient is %v, want %v", k, got, userGrad[k])
		}
	}
	for _, bad := range []models.MatrixFactorizationConfig{{}, {Users: 1, Items: 1}, {Users: -1, Items: 1, Width: 1}} {
		if bad.Validate() == nil {
			t.Errorf("%+v is valid", bad)
		}
	}
}
