// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/models"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/rpc/ps/rows"
	"github.com/cohort-ml/cohort/tensor"
)

var (
	coldRows  = flag.Int("cold", 0, "TestColdTraining: rows of dim 64 of all tables, 2000000 say")
	coldShare = flag.Int("cold.share", 1, "TestColdTraining: one part of so many of the rows and states fits the tables' memory")
	coldDir   = flag.String("cold.dir", "", "TestColdTraining: the directory of cold rows")
)

// TestColdTraining measures how fast a DLRM trains whose rows come from a server, with keys of
// Zipf 1.05, on demand. Run it with all rows in memory, and then with a third, where a control
// group may bound the memory of the process and of its files:
//
//	go test -c -o ps.test ./rpc/ps
//	./ps.test -test.run TestColdTraining -test.v -cold 2000000
//	./ps.test -test.run TestColdTraining -test.v -cold 2000000 -cold.share 3 -cold.dir .
func TestColdTraining(t *testing.T) {
	if *coldRows == 0 {
		t.Skip("on demand: set -cold")
	}
	const width, numTables, size, steps = 64, 8, 2048, 60
	config := models.DLRMConfig{Width: width, Bottom: []int{13, 512, 256, width}, Top: []int{512, 256, 1}, Sparse: true}
	perTable := *coldRows / numTables
	for range numTables {
		config.Tables = append(config.Tables, perTable)
	}
	m := models.NewDLRM(&nn.Build{Generator: tensor.NewGenerator(1), Device: tensor.Meta}, config)
	var tables []rows.Schema
	for _, p := range EmbeddingWeights(m) {
		s := TableOf(p)
		s.Init, s.Optimizer = rows.Init{Kind: rows.Uniform, Scale: 0.01}, rows.Optimizer{Kind: rows.Adagrad, LR: 0.05}
		if *coldShare > 1 {
			s.Memory = int64(perTable * 2 * 4 * width / *coldShare)
		}
		tables = append(tables, s)
	}
	c := start(t, 1, WithDir(*coldDir))
	client := c.dial("worker", WithWorker(0, 1, Bounded(1)), WithTables(tables...), WithTimeout(10*time.Minute))
	fillTables(t, client, tables, perTable)
	attached, err := Attach(m, client)
	if err == nil {
		err = nn.Materialize(m, tensor.CPU())
	}
	if err != nil {
		t.Fatal(err)
	}
	opt := optim.NewAdagrad(nn.Parameters(m), optim.AdagradOptions{LR: 0.05})
	r := rand.New(rand.NewPCG(3, 3))
	z := rand.NewZipf(r, 1.05, 1, uint64(perTable-1))
	g := tensor.NewGenerator(5)
	draw := func() []*tensor.Tensor {
		dense := tensor.Zeros(size, 13)
		g.Normal(dense, 0, 1)
		in := []*tensor.Tensor{dense}
		offsets := tensor.Arange(tensor.CPU(), size)
		for range numTables {
			ids := make([]int64, size)
			for i := range ids {
				ids[i] = int64(z.Uint64())
			}
			in = append(in, tensor.FromInt64(ids, size), offsets)
		}
		return in
	}
	ctx := t.Context()
	var began time.Time
	next := draw()
	for step := range 2 * steps {
		if step == steps { // the first half finds out what is hot
			began = time.Now()
		}
		in := next
		next = draw()
		for _, p := range nn.Parameters(m) {
			p.ZeroGrad()
		}
		_, err := nn.Backward(ctx, func(c *nn.Ctx) *tensor.Tensor {
			y := c.With(attached).CallN(m, in...)[0]
			if err := attached.Prefetch(ctx, int64(client.StepNumber())+1, next...); err != nil {
				c.Fail(err)
			}
			return y.Mul(y).Mean()
		})
		if err != nil {
			t.Fatal(err)
		}
		opt.Step(nil)
		if err := client.Step(ctx); err != nil {
			t.Fatal(err)
		}
	}
	rate := steps * size / time.Since(began).Seconds()
	hot, all, reads := 0, 0, uint64(0)
	for _, s := range c.servers[0].Tables() {
		st := s.Stats()
		hot, all, reads = hot+st.Hot, all+st.Rows, reads+uint64(st.ColdReads)
	}
	fmt.Printf("one part of %d in memory: %.1f thousand samples/s; %d of %d rows in memory, %d reads of the disk\n", *coldShare, rate/1e3, hot, all, reads)
	if err := errors.Join(client.Leave(ctx), client.Close()); err != nil {
		t.Fatal(err)
	}
}

// fillTables begins all rows of tables.
func fillTables(t *testing.T, client *Client, tables []rows.Schema, n int) {
	const block = 1 << 14
	for _, s := range tables {
		zeros := tensor.Zeros(block, s.Width)
		for lo := 0; lo < n; lo += block {
			keys := make([]int64, min(block, n-lo))
			for i := range keys {
				keys[i] = int64(lo + i)
			}
			if err := client.Push(t.Context(), Gradient{s.Name, keys, zeros.Narrow(0, 0, len(keys))}); err != nil {
				t.Fatal(err)
			}
		}
	}
}
