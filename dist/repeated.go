// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"fmt"
	"hash/crc64"
	"time"

	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/internal/errorfile"
)

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
	if n, no := g.base.Add(ctx, key, 1); no != nil || n == 1 {
		return err
	}
	return &errorfile.Repeated{Err: err}
}
