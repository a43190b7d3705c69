// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/dist"
)

// TestDoubtOfReports: a rank that could write, and that does not hear whether the others could, does
// not know what rank 0 has done. Rank 0 does, and so does a rank that could not write.
func TestDoubtOfReports(t *testing.T) {
	lost, own := errors.New("rank 2 was lost"), errors.New("no room")
	for _, c := range []struct {
		rank          int
		own, gathered error
		doubt         bool
	}{
		{1, nil, lost, true}, {0, nil, lost, false}, {1, own, lost, false}, {1, own, nil, false}, {1, nil, nil, false},
	} {
		v := &save{crew: crew{rank: c.rank, size: 3}, to: storage.Dir(t.TempDir())}
		err := v.fail("write", v.reported(c.own, c.gathered))
		if (err == nil) != (c.own == nil && c.gathered == nil) {
			t.Errorf("%+v: %v", c, err)
		}
		var saved *SaveError
		doubt := errors.As(err, &saved) && saved.Doubt && strings.Contains(err.Error(), "is not known") && !strings.Contains(err.Error(), "untouched")
		if doubt != c.doubt {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// unanswered commits, and says that nobody knows.
type unanswered struct{ storage.Storage }

func (u unanswered) Commit(ctx context.Context, stage, name string, manifest []byte) error {
	return &storage.DoubtError{Name: name, Err: errors.Join(u.Storage.Commit(ctx, stage, name, manifest), errors.New("no answer"))}
}

// TestDoubtOfCommit: the server does not answer to the commit. All ranks say so.
func TestDoubtOfCommit(t *testing.T) {
	to := unanswered{storage.Dir(t.TempDir())}
	var errs [2]error
	_ = dist.Spawn(t.Context(), 2, func(ctx context.Context, g *dist.Group) error {
		errs[g.Rank()] = Save(ctx, g, to, 1, State{})
		return nil
	})
	for rank, err := range errs {
		var saved *SaveError
		if !errors.As(err, &saved) || !saved.Doubt || strings.Contains(err.Error(), "untouched") {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}
