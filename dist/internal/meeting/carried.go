// SPDX-License-Identifier: Apache-2.0

package meeting

import (
	"context"

	"github.com/cohort-ml/cohort/dist/internal/backend"
	"github.com/cohort-ml/cohort/dist/internal/native"
	"github.com/cohort-ml/cohort/internal/transport"
)

// Carried is a job whose ranks another system has started and connected, such as an MPI. That
// system tells each rank its place and where rank 0 listens, and moves the data. Everything
// else is as in a job of [Start]: the store, the star of each group, and the news of deaths.
type Carried struct {
	Backend         string // its name: groups of the job have no other
	Rank, WorldSize int
	Master          string // where rank 0 is to listen, host:port
	Token           transport.Token
	// Open opens what moves the data of a group. The members may not all have come.
	Open func(ctx context.Context, s *backend.Spec) (native.Carrier, error)
	// Close ends this process's part, after all groups. pending is that of [backend.Job].
	Close func(pending bool) error
}

// StartCarried returns the job of a rank whose data another system moves.
func StartCarried(s *backend.Settings, by *Carried) (backend.Job, error) {
	m := &meeting{place: place{rank: by.Rank, worldSize: by.WorldSize, master: by.Master}, settings: s, carried: by}
	if by.WorldSize == 1 {
		if err := m.readEnvironment(); err != nil {
			return nil, err
		}
		return &carriedAlone{Alone(s), by}, nil
	}
	return m, nil
}

// carriedAlone is the job of a process that is its only rank.
type carriedAlone struct {
	backend.Job
	by *Carried
}

// Close implements [backend.Job].
func (j *carriedAlone) Close(pending bool) error {
	err := j.Job.Close(pending)
	if e := j.by.Close(pending); err == nil {
		err = e
	}
	return err
}
