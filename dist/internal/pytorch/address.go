// SPDX-License-Identifier: Apache-2.0

package pytorch

import (
	"context"
	"crypto/tls"
	"net"
	"net/netip"
	"time"

	"github.com/cohort-ml/cohort/dist/internal/gloo"
	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/internal/transport"
)

// addresses returns where this rank listens for the others: at the interfaces that
// are named, or the one that leads to where all meet, or as PyTorch does.
func (j *job) addresses(ctx context.Context) ([]netip.Addr, error) {
	if names := envvar.GlooInterface.Text(); names != "" || j.addr == "" {
		return gloo.LocalAddrs(ctx, names)
	}
	a, err := wayTo(ctx, j.addr)
	if err != nil || envvar.Interface.IsSet() {
		return []netip.Addr{a}, err
	}
	// Whose name server is not there need not wait for it long: most need no answer.
	ask, cancel := context.WithTimeout(ctx, nameTime)
	defer cancel()
	theirs, err := gloo.LocalAddrs(ask, "")
	switch {
	case err != nil:
	case a.IsLoopback() && !theirs[0].IsLoopback() && len(j.admitted) > 0: // others do not come that way
		a = theirs[0]
	case a.Is4() != theirs[0].Is4():
		a = inFamily(ctx, j.addr, theirs[0])
	}
	return []netip.Addr{a}, nil
}

// nameTime is how long the look-up of this host's name may take.
const nameTime = 2 * time.Second

// wayTo returns this machine's address on the way to where all meet.
func wayTo(ctx context.Context, addr string) (netip.Addr, error) {
	c, err := transport.ChooseInterface(ctx, addr)
	if err != nil {
		return netip.Addr{}, err
	}
	a, err := netip.ParseAddr(c.Host)
	return a.Unmap(), err
}

// inFamily returns this machine's address on a way to where all meet of the family that
// PyTorch's ranks use, whatever that is reached by: that of the address of their host's
// name. localhost is ::1 first on most systems, and the host's name of IPv4. It is theirs
// where there is no such way.
func inFamily(ctx context.Context, addr string, theirs netip.Addr) netip.Addr {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return theirs
	}
	network := "ip6"
	if theirs.Is4() {
		network = "ip4"
	}
	found, err := net.DefaultResolver.LookupNetIP(ctx, network, host)
	if err != nil {
		return theirs
	}
	for _, there := range found {
		if a, err := wayTo(ctx, net.JoinHostPort(there.Unmap().String(), port)); err == nil && a.Is4() == theirs.Is4() {
			return a
		}
	}
	return theirs
}

// glooTLS returns what the environment says of encryption, nil for none.
func glooTLS() (*tls.Config, error) {
	kind, err := envvar.GlooTransport.OneOf("TCP", "TCP_TLS")
	if err != nil || kind == "TCP" {
		return nil, err
	}
	return gloo.LoadTLS(envvar.GlooTLSKey.Text(), envvar.GlooTLSCert.Text(), envvar.GlooTLSCAFile.Text(), envvar.GlooTLSCAPath.Text())
}
