// SPDX-License-Identifier: Apache-2.0

package meeting

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"

	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/dist/internal/native"
	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/internal/transport"
)

// shares reports whether ranks of the job, given by their numbers in it, can
// all share memory. Every rank decides alike, from what all have said.
func (m *meeting) shares(world []int) bool {
	for _, r := range world {
		if in := &m.all[r]; in.Transport != "auto" && in.Transport != "shm" || in.Node == "" || in.Node != m.all[world[0]].Node || in.Unix == "" {
			return false
		}
	}
	return true
}

// numberNodes returns the number of each rank's node among those of ranks of the
// job, as [collective.Topology] wants it.
func (m *meeting) numberNodes(world []int) []int {
	numbers, node := map[string]int{}, make([]int, len(world))
	next := 0
	for i, r := range world {
		id := m.all[r].Node
		number, ok := numbers[id]
		if !ok || id == "" {
			number, next = next, next+1
			numbers[id] = number
		}
		node[i] = number
	}
	return node
}

// links decides how ranks of the job that do not all share memory talk: the
// topology by which plans are chosen, the links, and the name of it all.
func (m *meeting) links(world []int) (collective.Topology, native.MeshOptions, string) {
	node := m.numberNodes(world)
	numNodes := slices.Max(node) + 1
	links := native.MeshOptions{Node: node, TLS: m.encrypt}
	local, remote := "shm", "tcp"
	if m.encrypt == transport.EncryptAll {
		remote = "tls"
	}
	switch m.me.Transport { // as on all ranks
	case "unix":
		links.Local, local = native.LocalUnix, "unix"
	case "tcp":
		links.Local = native.LocalTCP
	case "tls":
		links.Local, links.LocalTLS, remote = native.LocalTCP, true, "tls"
		links.TLS = transport.EncryptAll
	}
	if m.carried != nil && links.Local == native.LocalShm { // the star alone needs links
		links.Local = native.LocalUnix
	}
	for _, r := range world {
		if m.all[r].Unix == "" {
			links.Local = native.LocalTCP
		}
	}
	if links.Local == native.LocalTCP {
		if local = "tcp"; links.LocalTLS {
			local = "tls"
		}
	}
	switch {
	case numNodes == 1: // ranks that talk over sockets all the same
		return collective.Apart(len(world)), links, local
	case numNodes == len(world) || local == remote:
		return collective.Topology{Node: node}, links, remote
	}
	return collective.Topology{Node: node}, links, local + "+" + remote
}

// publish gives everybody everybody's addresses. Where all ranks share memory
// nobody listens on a TCP port beside the store's.
func (m *meeting) publish(ctx context.Context, world []int) error {
	book := make([]native.Address, m.worldSize)
	for r, in := range m.all {
		book[r].Unix = in.Unix
	}
	defer func() { m.fabric.SetBook(book) }()
	if _, _, kind := m.links(world); m.shares(world) || kind == "unix" {
		return nil
	}
	if m.me.Transport == "shm" {
		return fmt.Errorf("%s=shm: the ranks are on several nodes, or this system has no shared memory between processes", envvar.Transport)
	}
	addr, err := m.listen(ctx)
	if err != nil {
		return err
	}
	addrs, err := exchange(ctx, m, "address", addr)
	if err != nil {
		return err
	}
	for r := range book {
		book[r].TCP = addrs[r]
	}
	return nil
}

// listen opens this process's TCP port, at rank 0 the one of the store.
func (m *meeting) listen(ctx context.Context) (addr string, err error) {
	if m.host != nil {
		return m.listenOn(m.host)
	}
	if m.choice, err = m.chooseInterface(ctx); err != nil {
		return "", err
	}
	if m.port != nil {
		m.fabric.Listen(m.port, false)
		return m.master, nil
	}
	port, err := transport.Listen(net.JoinHostPort(m.choice.Host, "0"), m.token)
	if err != nil {
		return "", err
	}
	m.guard(port)
	m.fabric.Listen(port, true)
	return port.Addr(), nil
}

// somewhere are addresses that nobody has (RFC 5737 and 3849): the route to
// them is the one to most of the world.
var somewhere = []string{"192.0.2.1:9", "[2001:db8::1]:9"}

// chooseInterface returns the address under which the other ranks reach this
// one. Where there is no master to ask the way to, and no way to the world
// either, ranks of one node have the loopback interface.
func (m *meeting) chooseInterface(ctx context.Context) (transport.Choice, error) {
	if m.master != "" {
		return transport.ChooseInterface(ctx, m.master)
	}
	var errs []error
	for _, to := range somewhere {
		c, err := transport.ChooseInterface(ctx, to)
		if err == nil {
			if !envvar.Interface.IsSet() {
				c.Why = "default route"
			}
			return c, nil
		}
		errs = append(errs, err)
	}
	if node := m.numberNodes(m.ranks()); slices.Max(node) == 0 && !envvar.Interface.IsSet() {
		return transport.ChooseInterface(ctx, "127.0.0.1:9")
	}
	return transport.Choice{}, errors.Join(errs...)
}

// ranks returns the numbers of all ranks of the job.
func (m *meeting) ranks() []int {
	all := make([]int, m.worldSize)
	for r := range all {
		all[r] = r
	}
	return all
}

// readEnvironment reads the variables that are about this rank's connections,
// needed or not: one that is wrong is to be told before it matters. A host of a
// network inside the process has none of that.
func (m *meeting) readEnvironment() (err error) {
	if m.host != nil {
		m.me.Transport, m.encrypt = "tcp", transport.EncryptNone
		m.me.Encrypt = m.encrypt.String()
		return nil
	}
	if m.me.Transport, err = envvar.Transport.OneOf(envvar.Transports()...); err != nil {
		return err
	}
	if m.encrypt, err = transport.EncryptFromEnv(); err != nil {
		return err
	}
	m.me.Encrypt = m.encrypt.String()
	return transport.CheckInterface()
}

// dataIsOpen reports whether data of collectives leaves a host in the clear, and nobody
// has said that it may. Encryption takes half of the bandwidth where processors are the limit, so it is
// not the default.
func (m *meeting) dataIsOpen() bool {
	if m.host != nil || m.encrypt != transport.EncryptControl || m.me.Transport == "tls" || envvar.Encrypt.IsSet() {
		return false
	}
	return slices.ContainsFunc(m.all, func(in introduction) bool { return in.Node != m.me.Node && in.Host != m.me.Host })
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

// listenUnix opens the port at which ranks of this node reach this one, unless the
// environment keeps them from it.
func (m *meeting) listenUnix() error {
	if kind := m.me.Transport; (!native.SharedMemory || kind != "auto" && kind != "shm") && kind != "unix" {
		return nil
	}
	port, err := transport.Listen("unix:", m.token)
	if err != nil {
		return err
	}
	m.guard(port)
	m.fabric.Listen(port, true)
	m.me.Unix = port.Addr()
	return nil
}
