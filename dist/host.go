// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"github.com/cohort-ml/cohort/dist/internal/native"
	"github.com/cohort-ml/cohort/internal/transport"
)

// number counts a request where calls are counted: as it is called, for
// asynchronous ones begin in no order.
func (g *Group) number(r *request) {
	if g.host != nil {
		r.number = g.host.Called()
	}
}

// around moves a request, between what a host does before and after.
func (g *Group) around(r *request) error {
	if g.host == nil {
		return g.move(r)
	}
	return g.host.Around(r.number, g.name, r.call, func() error { return g.move(r) })
}

// listenOn opens this rank's port in the network inside the process.
func (m *meeting) listenOn(h *native.Host) (addr string, err error) {
	ln, err := h.Listen()
	if err != nil {
		return "", err
	}
	port, err := transport.ListenOn(ln, m.token)
	if err != nil {
		_ = ln.Close()
		return "", err
	}
	m.fabric.Listen(port, true)
	return port.Addr(), nil
}
