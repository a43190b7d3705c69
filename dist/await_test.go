// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
)

// newGroups has every rank of three make a group of all, with an option of its
// own or, for nil, not at all; all must end with a time-out.
func newGroups(t *testing.T, opts func(rank int) []Option, check func(rank int, late *TimeoutError, text string) error) {
	failingAtOnce(t, 3, func(ctx context.Context, g *Group) error {
		opt := opts(g.Rank())
		if opt == nil {
			return nil
		}
		limit, cancel := context.WithTimeout(ctx, waitLimit()) // in which the others come, too
		defer cancel()
		sub, err := g.NewGroup(limit, []int{0, 1, 2}, opt...)
		if err == nil {
			return errors.Join(errors.New("there is a group"), sub.Close())
		}
		return err
	}, func(errs []error) error {
		for r, err := range errs {
			if opts(r) == nil {
				continue
			}
			var late *TimeoutError
			if !errors.As(err, &late) {
				return fmt.Errorf("rank %d: not a time-out", r)
			}
			if text := err.Error(); strings.Count(text, "dist: ") != 1 || strings.Contains(text, "init 0") || strings.Count(text, "dist: new group") != 1 {
				return fmt.Errorf("rank %d: the text says too much: %s", r, text)
			}
			if err := check(r, late, err.Error()); err != nil {
				return fmt.Errorf("rank %d: %w", r, err)
			}
		}
		return nil
	})
}

// TestNewGroupNamesTheMissing: the one that does not call is missing, and not
// the one that waits for it too.
func TestNewGroupNamesTheMissing(t *testing.T) {
	for missing := range 2 { // the hub of a group, and one of the others
		t.Run(fmt.Sprint(missing), func(t *testing.T) {
			newGroups(t, func(rank int) []Option {
				if rank == missing {
					return nil
				}
				return []Option{WithName("evens")}
			}, func(rank int, late *TimeoutError, text string) error {
				if len(late.Missing) != 1 || late.Missing[0].Rank != missing || !strings.Contains(text, `this rank waited for the group "evens")`) {
					return fmt.Errorf("misses %v, want rank %d: %s", late.Missing, missing, text)
				}
				return nil
			})
		})
	}
}

// TestNewGroupNamesDiffer: members that give other names learn of each other's.
func TestNewGroupNamesDiffer(t *testing.T) {
	const odd = 1
	newGroups(t, func(rank int) []Option {
		if rank == odd {
			return []Option{WithName("odds")}
		}
		return []Option{WithName("evens")}
	}, func(rank int, late *TimeoutError, text string) error {
		want := `this rank waited for the group "evens"; the group "odds" of the same ranks is waited for by rank 1`
		if rank == odd {
			want = `this rank waited for the group "odds"; the group "evens" of the same ranks is waited for by rank `
		}
		if !strings.Contains(text, want) {
			return fmt.Errorf("the text is %q, want %q", text, want)
		}
		return nil
	})
}

// TestNameInUse: a rank has one group of a name at a time, whatever its members
// and whichever group it is made from.
func TestNameInUse(t *testing.T) {
	onEveryTransport(t, []int{3}, func(ctx context.Context, g *Group) error {
		sub, err := g.NewGroup(ctx, []int{0, 1, 2}, WithName("x"))
		if err != nil {
			return err
		}
		for _, parent := range []*Group{g, sub} {
			for _, name := range []string{"x", "world"} {
				_, err := parent.NewGroup(ctx, []int{g.Rank()}, WithName(name))
				if want := fmt.Sprintf("this rank has a group of the name %q", name); err == nil || !strings.Contains(err.Error(), want) {
					return fmt.Errorf("got %w, want %q", err, want)
				}
			}
		}
		if err := sub.Barrier(ctx); err != nil {
			return err
		}
		if err := sub.Close(); err != nil {
			return err
		}
		again, err := g.NewGroup(ctx, []int{0, 1, 2}, WithName("x"))
		if err != nil {
			return fmt.Errorf("after it was closed: %w", err)
		}
		return again.Barrier(ctx)
	})
}
