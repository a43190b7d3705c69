// SPDX-License-Identifier: Apache-2.0

package native

import (
	"context"
	"net"

	"github.com/cohort-ml/cohort/dist/operation"
	"github.com/cohort-ml/cohort/internal/transport"
)

// Host is the place of a rank that is a goroutine of this process and yet reaches
// other ranks as a process does: over the sockets of a network in memory, such as
// that of package disttest. Everything above the sockets is the same as elsewhere.
// A host reaches dist.Init in the context: see [NewContext].
type Host struct {
	Name  string // in errors
	PID   int    // in errors
	Token transport.Token
	// Listen opens the rank's port. The listener's address is the one that other
	// ranks dial.
	Listen func() (net.Listener, error)
	Dial   transport.DialFunc
	// Called counts an operation that the rank calls, and returns its number.
	Called func() int
	// Around runs an operation with such a number: it calls do once and returns the
	// operation's error.
	Around func(number int, group string, c operation.Call, do func() error) error
}

type hostKey struct{}

// NewContext returns a context in which dist.Init forms the group's rank on a host.
func NewContext(ctx context.Context, h *Host) context.Context {
	return context.WithValue(ctx, hostKey{}, h)
}

// HostFrom returns the host that [NewContext] has put into a context, nil if there
// is none.
func HostFrom(ctx context.Context) *Host {
	h, _ := ctx.Value(hostKey{}).(*Host)
	return h
}

// Over makes the fabric connect through a host's network.
func (f *Fabric) Over(h *Host) { f.dialer = h.Dial }
