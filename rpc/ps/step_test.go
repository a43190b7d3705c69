// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"context"
	"slices"
	"testing"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/rpc/ps/rows"
	"github.com/cohort-ml/cohort/tensor"
)

// From the second pass of a model on, a step is one pull and one push at each server.
func TestOneRequestAServerAndStep(t *testing.T) {
	c := start(t, 2)
	_, tables := recommender()
	client := c.dial("worker", WithWorker(0, 1, Synchronous()), WithTables(tables...))
	const numSteps = 6
	err := dist.Spawn(t.Context(), 1, func(ctx context.Context, g *dist.Group) error {
		_, _, err := train(ctx, g, rows.SGD, 1, numSteps, client)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	all, err := client.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		if most := uint64(len(tables) + numSteps - 1); s.Pulls == 0 || s.Pulls > most {
			t.Errorf("server %d answered %d pulls in %d steps, want %d at most", s.Server, s.Pulls, numSteps, most)
		}
		if s.Pushes != numSteps || s.Step != numSteps || !slices.Equal(s.Next, []int64{numSteps}) || len(s.Tables) != len(tables) {
			t.Errorf("status: %+v, want %d pushes and steps, and %d tables", s, numSteps, len(tables))
		}
	}
}

// A worker dies when one server has its push and another has not. The worker that takes its
// place pushes the step again: it takes effect once at each server.
func TestWorkerDiesBetweenServers(t *testing.T) {
	c := start(t, 2)
	a := exact("a", 1)
	routing, err := NewRouting(2)
	if err != nil {
		t.Fatal(err)
	}
	keys := []int64{0, 1} // of both servers
	for routing.ServerOf(keys[0], 0) == routing.ServerOf(keys[1], 0) {
		keys[1]++
	}
	push := Gradient{"a", keys, tensor.Full(-1, 2, 1)}
	first := c.dial("first", WithWorker(0, 1, Synchronous()), WithTables(a))
	if err := first.Push(t.Context(), push); err != nil {
		t.Fatal(err)
	}
	half := routing.ServerOf(keys[0], 0)
	_, err = pushMethod.Call(t.Context(), first.remotes[half].opened(), pushArgs{Client: first.remotes[half].name(), Number: 2, Pushes: []pushItem{
		{Step: 1, Parts: []pushPart{{Table: "a", Keys: tensor.FromInt64(keys[:1]), Grads: tensor.Full(-1, 1, 1)}}}}})
	if err != nil {
		t.Fatal(err)
	}
	second := c.dial("second", WithWorker(0, 1, Synchronous()))
	if got := second.StepNumber(); got != 1 {
		t.Errorf("the second worker begins with step %d, want 1", got)
	}
	if err := second.Push(t.Context(), push); err != nil {
		t.Fatal(err)
	}
	got, err := second.Pull(t.Context(), Request{Table: "a", Keys: keys})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got[0].Float32s(), []float32{2, 2}) {
		t.Errorf("the rows are %v, want 2 and 2", got[0].Float32s())
	}
}

// Dense tables go by ranges, have Adam, and refuse keys that they do not have.
func TestDenseTable(t *testing.T) {
	for _, servers := range []int{1, 3} {
		c := start(t, servers)
		a := rows.Schema{Name: "w", Width: 2, Rows: 7, Optimizer: rows.Optimizer{Kind: rows.SGD, LR: 1}}
		client := c.dial("worker", WithWorker(0, 1, Synchronous()), WithTables(a))
		keys := []int64{0, 1, 2, 3, 4, 5, 6}
		grads := tensor.Arange(tensor.CPU(), 14).To(tensor.Float32).Reshape(7, 2)
		if err := client.SetLR("w", 2); err != nil {
			t.Fatal(err)
		}
		if err := client.Push(t.Context(), Gradient{"w", keys, grads}); err != nil {
			t.Fatal(err)
		}
		got, err := client.Pull(t.Context(), Request{Table: "w", Keys: keys})
		if err != nil {
			t.Fatal(err)
		}
		for i, x := range got[0].Float32s() {
			if x != float32(-2*i) {
				t.Fatalf("%d servers: value %d is %v, want %d", servers, i, x, -2*i)
			}
		}
		for _, k := range []int64{-1, 7} {
			if _, err := client.Pull(t.Context(), Request{Table: "w", Keys: []int64{k}}); KindOf(err) != KindKeys {
				t.Errorf("a pull of key %d: %v", k, err)
			}
			if err := client.Add(Gradient{"w", []int64{k}, tensor.Zeros(1, 2)}); KindOf(err) != KindKeys {
				t.Errorf("a gradient of key %d: %v", k, err)
			}
		}
		_, err = pullMethod.Call(t.Context(), client.remotes[0].opened(), pullArgs{Parts: []pullPart{{Table: "w", Keys: tensor.FromInt64([]int64{7})}}})
		if KindOf(err) != KindKeys { // the server checks too
			t.Errorf("the server's answer to key 7: %v", err)
		}
	}
}
