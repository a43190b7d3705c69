// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/dist/store/storetest"
	"github.com/cohort-ml/cohort/internal/seeded"
)

// linearizable says whether operations can have happened one after the other.
func linearizable(ops []storetest.Operation) porcupine.CheckResult {
	var history []porcupine.Operation
	for _, o := range ops {
		history = append(history, porcupine.Operation{ClientId: o.Client, Input: o, Output: o, Call: int64(o.Call), Return: int64(o.Return)})
	}
	return porcupine.CheckOperationsTimeout(porcupine.Model{
		Init: func() any { return storetest.State{} },
		Step: func(state, in, _ any) (bool, any) {
			ok, next := state.(storetest.State).Step(in.(storetest.Operation))
			return ok, next
		},
	}, history, 20*time.Second)
}

// TestLinearizable: whatever several clients do at once, there is an order of
// it that explains what each of them saw.
func TestLinearizable(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			if weak[k.name] != nil {
				t.Skip("PyTorch's protocol cannot say what would be needed, such as that a key was deleted between a wait and a get")
			}
			rounds, each := 20, 40
			if testing.Short() {
				rounds, each = 3, 25
			}
			first := seeded.Of(t)
			for seed := first; seed < first+uint64(rounds); seed++ {
				a, b := k.open(t)
				ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
				ops := storetest.Record(t, ctx, seed, []store.Store{a, b, a, b, a, b}, each)
				cancel()
				if t.Failed() {
					return
				}
				if result := linearizable(ops); result != porcupine.Ok {
					for _, o := range ops {
						t.Log(o)
					}
					t.Fatalf("seed %d: the history is %s", seed, result)
				}
			}
		})
	}
}

// forgetful is a store whose reads are old now and then.
type forgetful struct {
	store.Store
	mu   sync.Mutex
	n    int
	last []byte
}

func (f *forgetful) Get(ctx context.Context, key string) ([]byte, error) {
	v, err := f.Store.Get(ctx, key)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.n++; f.n%10 == 0 {
		v = f.last
	}
	f.last = v
	return v, err
}

// torn is a store that sets several keys one after the other.
type torn struct{ store.Store }

func (s torn) MultiSet(ctx context.Context, keys []string, values [][]byte) error {
	for i, k := range keys {
		if err := s.Set(ctx, k, values[i]); err != nil {
			return err
		}
		time.Sleep(10 * time.Microsecond)
	}
	return nil
}

// The check finds what is not linearizable.
func TestLinearizableCanFail(t *testing.T) {
	for name, spoil := range map[string]func(s store.Store) store.Store{
		"old reads": func(s store.Store) store.Store { return &forgetful{Store: s, last: []byte("never")} },
		"torn sets": func(s store.Store) store.Store { return torn{s} },
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(50) {
				s := spoil(store.NewMemory())
				ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
				ops := storetest.Record(t, ctx, seed, []store.Store{s, s, s, s}, 40)
				cancel()
				if linearizable(ops) == porcupine.Illegal {
					return
				}
			}
			t.Error("50 histories of a broken store were found right")
		})
	}
}
