// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"fmt"
	"os"

	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/internal/transport"
)

// guard makes a port of this rank take what the job's policy allows and say on
// standard error who was turned away: for each reason one line at once, then a
// line a minute at most, so that somebody who looks for that of a wrong token, or
// for a stranger, finds it on the side that refused.
func (m *meeting) guard(port *transport.Port) {
	rank := m.rank
	port.OnRefusal(func(r transport.Refusals) {
		fmt.Fprintf(os.Stderr, "cohort: rank %d %v\n", rank, r)
	})
	switch m.encrypt {
	case transport.EncryptControl:
		store.RequireTLS(port)
	case transport.EncryptAll:
		port.RequireTLS()
	case transport.EncryptNone:
	}
}
