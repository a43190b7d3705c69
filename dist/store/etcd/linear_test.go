// SPDX-License-Identifier: Apache-2.0

package etcd_test

import (
	"context"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/dist/store/etcd"
	"github.com/cohort-ml/cohort/dist/store/storetest"
	"github.com/cohort-ml/cohort/internal/seeded"
)

// TestLinearizable is that of package store.
func TestLinearizable(t *testing.T) {
	rounds := 3
	if testing.Short() {
		rounds = 1
	}
	first := seeded.Of(t)
	for round := range rounds {
		seed := first + uint64(round)
		at := root(t)
		var stores []store.Store
		for range 3 {
			c := client(t)
			for range 2 {
				stores = append(stores, etcd.New(c, at))
			}
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		ops := storetest.Record(t, ctx, seed, stores, 25)
		cancel()
		if t.Failed() {
			return
		}
		var history []porcupine.Operation
		for _, o := range ops {
			history = append(history, porcupine.Operation{ClientId: o.Client, Input: o, Output: o, Call: int64(o.Call), Return: int64(o.Return)})
		}
		result := porcupine.CheckOperationsTimeout(porcupine.Model{
			Init: func() any { return storetest.State{} },
			Step: func(state, in, _ any) (bool, any) {
				ok, next := state.(storetest.State).Step(in.(storetest.Operation))
				return ok, next
			},
		}, history, 20*time.Second)
		if result != porcupine.Ok {
			for _, o := range ops {
				t.Log(o)
			}
			t.Fatalf("seed %d: the history is %s", seed, result)
		}
	}
}
