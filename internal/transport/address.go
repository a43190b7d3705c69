// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cohort-ml/cohort/internal/envvar"
)

// parseAddress splits an address as the package comment has them.
func parseAddress(addr string) (network, address string, err error) {
	if path, ok := strings.CutPrefix(addr, "unix:"); ok {
		if strings.HasPrefix(path, "@") && !abstractSockets {
			return "", "", fmt.Errorf("address %q: this system has no abstract sockets, use unix:/path", addr)
		}
		return "unix", path, nil
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", "", fmt.Errorf("address %q: want host:port, [ipv6]:port or unix:/path", addr)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		return "", "", fmt.Errorf("address %q: port %q is not a number from 0 to 65535", addr, port)
	}
	return "tcp", net.JoinHostPort(host, port), nil
}

// addressOf is the reverse of parseAddress.
func addressOf(a net.Addr) string {
	if a == nil {
		return "unknown address"
	}
	if a.Network() == "unix" {
		return "unix:" + a.String()
	}
	return a.String()
}

// freshUnix returns a unix address that nobody has, and what to remove when
// it is no longer used: a directory, or nothing.
func freshUnix() (address, dir string, err error) {
	if abstractSockets {
		var id [16]byte
		rand.Read(id[:])
		return "@cohort-" + hex.EncodeToString(id[:]), "", nil
	}
	// Only the owner can enter a directory made by MkdirTemp. Its path stays
	// short: a socket's path has at most about 100 bytes.
	dir, err = os.MkdirTemp("", "cohort-")
	if err != nil {
		return "", "", err
	}
	return filepath.Join(dir, "s"), dir, nil
}

// ReachableHost returns the IP address under which peers reach this process,
// to be published with a port's number: the one that COHORT_INTERFACE gives,
// otherwise the local end of the route to addr ("host:port", where the master
// listens). No packet is sent, and the own host name is never looked up.
func ReachableHost(ctx context.Context, addr string) (string, error) {
	if name, ok := envvar.Interface.Lookup(); ok {
		return InterfaceHost(name)
	}
	network, address, err := parseAddress(addr)
	if err != nil {
		return "", err
	}
	if network != "tcp" {
		return "", fmt.Errorf("address %q: no route leads to a unix socket", addr)
	}
	// Connecting a datagram socket only chooses the route.
	nc, err := new(net.Dialer).DialContext(ctx, "udp", address)
	if err != nil {
		return "", fmt.Errorf("no route to %s: %w: set %s to the interface that peers reach", addr, plain(err), envvar.Interface)
	}
	defer nc.Close()
	return hostOf(nc.LocalAddr())
}

// LocalHost returns the IP address of the connection's local end, which is
// one that the peer can reach.
func (c *Conn) LocalHost() (string, error) { return hostOf(c.LocalAddr()) }

func hostOf(a net.Addr) (string, error) {
	ap, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return "", fmt.Errorf("%s address %q has no IP address", a.Network(), a)
	}
	return ap.Addr().Unmap().String(), nil
}

// InterfaceHost returns the address of a network interface (IPv4 before
// IPv6, neither link-local unless there is nothing else), or of name itself
// when it is an IP address of this machine.
func InterfaceHost(name string) (string, error) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return "", fmt.Errorf("list the network interfaces: %w", err)
	}
	wanted, wantIP := netip.ParseAddr(name)
	var known []string
	for _, ifc := range interfaces {
		var usable []netip.Addr
		addrs, err := ifc.Addrs()
		if err != nil {
			continue
		}
		for _, a := range addrs {
			prefix, err := netip.ParsePrefix(a.String())
			if err != nil {
				continue
			}
			ip := prefix.Addr().Unmap()
			if wantIP == nil && ip == wanted.Unmap().WithZone("") {
				return wanted.String(), nil
			}
			if ip.IsLinkLocalUnicast() && ip.Is6() {
				ip = ip.WithZone(ifc.Name)
			}
			usable = append(usable, ip)
		}
		slices.SortStableFunc(usable, func(a, b netip.Addr) int { return preference(a) - preference(b) })
		if ifc.Name == name {
			if len(usable) == 0 {
				return "", fmt.Errorf("network interface %s has no IP address", name)
			}
			if ifc.Flags&net.FlagUp == 0 {
				return "", fmt.Errorf("network interface %s is down", name)
			}
			return usable[0].String(), nil
		}
		if len(usable) > 0 {
			known = append(known, fmt.Sprintf("%s (%s)", ifc.Name, usable[0]))
		}
	}
	return "", fmt.Errorf("no network interface or local address %q: this machine has %s (chosen by %s)", name, strings.Join(known, ", "), envvar.Interface)
}

// preference orders addresses: lower is better.
func preference(a netip.Addr) int {
	p := 0
	if !a.Is4() {
		p++
	}
	if a.IsLinkLocalUnicast() {
		p += 2
	}
	return p
}
