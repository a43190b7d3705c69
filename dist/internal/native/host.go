// SPDX-License-Identifier: Apache-2.0

package native

import (
	"net"

	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/internal/transport"
)

// Host is where a rank stands that is a goroutine and yet reached like a
// process: on a host of a network inside this process, such as package
// disttest has. Everything above the sockets is as on any other.
type Host struct {
	Name  string // as errors name it
	PID   int    // likewise
	Token transport.Token
	// Listen opens the rank's port. Its address is the one that others dial.
	Listen func() (net.Listener, error)
	Dial   transport.DialFunc
	// Called counts an operation that the rank calls, and returns its number.
	Called func() int
	// Around runs an operation of the rank, of such a number, by calling do,
	// once, and returns the operation's error.
	Around func(number int, group string, c collective.Call, do func() error) error
}

// Over makes the fabric connect through a host's network.
func (f *Fabric) Over(h *Host) { f.dialer = h.Dial }
