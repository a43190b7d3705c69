// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"strings"
	"testing"
	"time"
)

// TestMethodOfWhatFailed: whoever calls a method of a value that could not be made
// hears why, at once and however the method is called.
func TestMethodOfWhatFailed(t *testing.T) {
	unknown := NewMethod[struct{}, int]("explain.unknown")
	on := NewOn[int, struct{}, int]("explain.on")
	a := agents(t, "pipe", 2, WithTimeout(time.Minute), WithLease(time.Hour),
		ServeOn(on, func(_ context.Context, n int, _ struct{}) (int, error) { return n, nil }))
	for how, use := range map[string]func(r *RRef[int]) error{
		"ToHere": func(r *RRef[int]) error { _, err := r.ToHere(t.Context()); return err },
		"Call":   func(r *RRef[int]) error { _, err := on.Call(t.Context(), r, struct{}{}); return err },
		"Async":  func(r *RRef[int]) error { _, err := on.Async(t.Context(), r, struct{}{}).Wait(t.Context()); return err },
		"Remote": func(r *RRef[int]) error {
			next, err := on.Remote(t.Context(), r, struct{}{})
			if err != nil {
				return err
			}
			_, err = next.ToHere(t.Context())
			return err
		},
	} {
		for range 10 {
			ref, err := unknown.Remote(t.Context(), a[0].Peer("w1"), struct{}{})
			if err != nil {
				t.Fatal(err)
			}
			if err := use(ref); KindOf(err) != KindUnknownMethod || !strings.Contains(err.Error(), "explain.unknown at w1") {
				t.Errorf("%s: %v; want why there is no value", how, err)
			}
		}
	}
}
