// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"
)

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
