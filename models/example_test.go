// SPDX-License-Identifier: Apache-2.0

package models_test

import (
	"context"
	"fmt"
	"log"

	"github.com/cohort-ml/cohort/models"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// The vectors of two texts, which a tokenizer has made tokens of.
func ExampleLoadSentenceEncoder() {
	folder := "testdata/golden/sentences/mean"
	ids := tensor.FromInt64([]int64{2, 7, 9, 3, 2, 8, 3, 0}, 2, 4)
	mask := tensor.FromBool([]bool{true, true, true, true, true, true, true, false}, 2, 4)

	m, err := models.LoadSentenceEncoder(folder)
	if err != nil {
		log.Fatal(err)
	}
	c := nn.Evaluation(context.Background())
	defer c.Close()
	vectors := c.CallN(m, ids, nil, mask)[0] // [batch, width]
	fmt.Println(vectors.Shape())
	// Output: [2 8]
}
