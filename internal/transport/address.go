// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
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

// isAbandoned reports whether a path is a socket on which no process listens: its process was killed, and
// another one may take its place.
func isAbandoned(path string) bool {
	st, err := os.Lstat(path)
	if err != nil || st.Mode().Type() != os.ModeSocket {
		return false
	}
	nc, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		nc.Close()
	}
	return errors.Is(err, syscall.ECONNREFUSED)
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

// LookupHosts returns the addresses of hosts: names or IP addresses, separated by commas.
func LookupHosts(ctx context.Context, list string) ([]netip.Prefix, error) {
	var from []netip.Prefix
	for name := range strings.SplitSeq(list, ",") {
		if name == "" {
			continue
		}
		found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", strings.Trim(name, "[]"))
		if err != nil {
			return nil, err
		}
		for _, a := range found {
			a = a.Unmap().WithZone("")
			from = append(from, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return from, nil
}

// Admits reports whether an address is of this host or one of those given: for ports of
// protocols that have no authentication.
func Admits(from []netip.Prefix, a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	if a.IsLoopback() || slices.ContainsFunc(from, func(p netip.Prefix) bool { return p.Contains(a) }) {
		return true
	}
	mine, err := net.InterfaceAddrs()
	return err == nil && slices.ContainsFunc(mine, func(m net.Addr) bool {
		p, ok := m.(*net.IPNet)
		return ok && p.IP.Equal(a.AsSlice())
	})
}
