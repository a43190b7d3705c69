// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"fmt"
	"hash/crc64"
	"time"

	"github.com/cohort-ml/cohort/dist/internal/backend"
	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/internal/errorfile"
)

// consequencePause is how long a rank that failed because of another one stays.
const consequencePause = 200 * time.Millisecond

// Main makes of a rank's main function what launch.Spawn runs: the group of all
// ranks is formed before it and left after it, and its error is put where the
// launcher looks for it (TORCHELASTIC_ERROR_FILE).
func Main(main func(ctx context.Context, g *Group) error, opts ...Option) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		g, err := Init(ctx, opts...)
		errorfile.Record(err, "")
		if backend.IsConsequence(err) {
			time.Sleep(consequencePause)
		}
		if err != nil {
			return err
		}
		err = main(ctx, g)
		errorfile.Record(err, "")
		if backend.IsConsequence(err) {
			// Let the launcher see the rank that failed first end first.
			time.Sleep(consequencePause)
		} else if err != nil {
			g.fail(err) // the other ranks' errors tell why
			err = g.sayOnce(ctx, err)
		}
		if closeErr := g.Close(); err == nil {
			err = closeErr
		}
		return err
	}
}

// sayOncePatience is how long a rank that ends with an error asks whether another
// one has said it: the store may be gone.
const sayOncePatience = 500 * time.Millisecond

// sayOnce marks an error that another rank has ended with before, such as that of
// a file that all of them read: one of them prints it. That is for ranks whose
// launcher reports it at the same place.
func (g *Group) sayOnce(ctx context.Context, err error) error {
	if g.size == 1 || !envvar.Spawn.IsSet() || !envvar.ErrorFile.IsSet() {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sayOncePatience)
	defer cancel()
	key := fmt.Sprintf("said/%s/%016x", envvar.RestartCount.Get("0"), crc64.Checksum([]byte(err.Error()), crc64.MakeTable(crc64.ECMA)))
	if n, no := g.keys.Add(ctx, key, 1); no != nil || n == 1 {
		return err
	}
	return &errorfile.Repeated{Err: err}
}
