// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
)

// LocalAddrs returns the addresses at which a PyTorch rank on this machine would
// listen. names is what GLOO_SOCKET_IFNAME holds: interfaces, separated by commas,
// each of which gives an address and so a context of the group. Without a name it is
// the address of this host's name, or the loopback's where that has none that is
// this machine's own.
func LocalAddrs(ctx context.Context, names string) ([]netip.Addr, error) {
	if names == "" {
		return []netip.Addr{hostAddr(ctx)}, nil
	}
	var addrs []netip.Addr
	for name := range strings.SplitSeq(names, ",") {
		a, err := interfaceAddr(name)
		if err != nil {
			return nil, err
		}
		addrs = append(addrs, a)
	}
	return addrs, nil
}

// interfaceAddr returns the first address of an interface, of IPv4 if it has one.
func interfaceAddr(name string) (netip.Addr, error) {
	in, err := net.InterfaceByName(name)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("gloo: the interface %q: %w", name, err)
	}
	all, err := in.Addrs()
	if err != nil {
		return netip.Addr{}, fmt.Errorf("gloo: the addresses of the interface %q: %w", name, err)
	}
	var found netip.Addr
	for _, a := range all {
		p, err := netip.ParsePrefix(a.String())
		if err != nil {
			continue
		}
		ip := p.Addr().Unmap()
		if ip.Is4() {
			return ip, nil
		}
		if !found.IsValid() {
			found = ip
			if ip.IsLinkLocalUnicast() {
				found = ip.WithZone(name)
			}
		}
	}
	if !found.IsValid() {
		return netip.Addr{}, fmt.Errorf("gloo: the interface %q has no address", name)
	}
	return found, nil
}

// hostAddr returns the address of this host's name.
func hostAddr(ctx context.Context) netip.Addr {
	loopback := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	name, err := os.Hostname()
	if err != nil {
		return loopback
	}
	found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", name)
	if err != nil {
		return loopback
	}
	for _, ip := range found {
		ip = ip.Unmap()
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", netip.AddrPortFrom(ip, 0).String())
		if err == nil {
			l.Close()
			return ip
		}
	}
	return loopback
}

// zoneNumber and zoneName translate between the zone of an IPv6 address and the
// number of its interface.
func zoneNumber(zone string) uint32 {
	if zone == "" {
		return 0
	}
	if in, err := net.InterfaceByName(zone); err == nil {
		return uint32(in.Index)
	}
	n, _ := strconv.ParseUint(zone, 10, 32)
	return uint32(n)
}

func zoneName(zone uint32) string {
	if in, err := net.InterfaceByIndex(int(zone)); err == nil {
		return in.Name
	}
	return strconv.FormatUint(uint64(zone), 10)
}
