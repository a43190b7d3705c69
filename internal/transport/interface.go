// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/internal/envvar"
)

// Choice is the address under which peers reach this process, and why it is
// this one. Its text is for the start of a run: which interface was chosen
// explains more slow and broken jobs than anything else.
type Choice struct {
	Host      string // an IP address, with a zone where it is link-local
	Interface string // its name, empty if no interface has the address
	Why       string // "route to 10.0.0.1:29500", "COHORT_INTERFACE=eth0"
}

// String returns a text such as "eth0 10.0.0.3 (route to 10.0.0.1:29500)".
func (c Choice) String() string {
	return strings.TrimSpace(c.Interface+" "+c.Host) + " (" + c.Why + ")"
}

// ChooseInterface returns the address under which peers reach this process,
// to be published with a port's number: the one that COHORT_INTERFACE gives,
// otherwise the local end of the route to master ("host:port", where the
// master listens). No packet is sent, and the own host name is never looked up.
func ChooseInterface(ctx context.Context, master string) (Choice, error) {
	if c, ok, err := interfaceFromEnv(); ok {
		return c, err
	}
	network, address, err := parseAddress(master)
	if err != nil {
		return Choice{}, err
	}
	if network != "tcp" {
		return Choice{}, fmt.Errorf("address %q: no route leads to a unix socket", master)
	}
	// Connecting a datagram socket only chooses the route.
	nc, err := new(net.Dialer).DialContext(ctx, "udp", address)
	if err != nil {
		return Choice{}, fmt.Errorf("no route to %s: %w: give the master's IP address, or set %s to the interface that peers reach", master, plain(err), envvar.Interface)
	}
	defer nc.Close()
	host, err := hostOf(nc.LocalAddr())
	if err != nil {
		return Choice{}, err
	}
	return Choice{Host: host, Interface: InterfaceOf(host), Why: "route to " + master}, nil
}

// InterfaceOf returns the name of the interface that has an IP address, empty for none.
func InterfaceOf(host string) string {
	all, err := interfaces()
	if err != nil { // the name is a help, not a need
		return ""
	}
	for _, f := range all {
		if slices.ContainsFunc(f.addrs, func(a netip.Prefix) bool { return a.Addr().String() == host }) {
			return f.name
		}
	}
	return ""
}

// LeavesHost reports whether what is sent to an address of a port leaves this
// host, as far as the route to it tells; no packet is sent. An address to which
// there is no way yet does.
func LeavesHost(ctx context.Context, addr string) bool {
	network, address, err := parseAddress(addr)
	if err != nil || network == "unix" {
		return err != nil
	}
	nc, err := new(net.Dialer).DialContext(ctx, "udp", address)
	if err != nil {
		return true
	}
	defer nc.Close()
	// To one of its own addresses a host sends from that very address.
	here, err := hostOf(nc.LocalAddr())
	if err != nil {
		return true
	}
	there, err := hostOf(nc.RemoteAddr())
	return err != nil || here != there
}

// interfaceFromEnv returns what COHORT_INTERFACE asks for, if it is set.
func interfaceFromEnv() (c Choice, ok bool, err error) {
	wanted, ok := envvar.Interface.Lookup()
	if !ok {
		return Choice{}, false, nil
	}
	all, err := interfaces()
	if err != nil {
		return Choice{}, true, err
	}
	c, err = pick(wanted, all)
	return c, true, err
}

// CheckInterface returns what is wrong with COHORT_INTERFACE, whether or not
// anything will be reached through it.
func CheckInterface() error {
	_, _, err := interfaceFromEnv()
	return err
}

// networkInterface is what matters of one, its best address first.
type networkInterface struct {
	name  string
	up    bool
	addrs []netip.Prefix
}

// interfaces returns those of this machine that have an address.
func interfaces() ([]networkInterface, error) {
	list, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list the network interfaces: %w", err)
	}
	var all []networkInterface
	for _, i := range list {
		addrs, err := i.Addrs()
		if err != nil {
			continue
		}
		f := networkInterface{name: i.Name, up: i.Flags&net.FlagUp != 0}
		for _, a := range addrs {
			if prefix, err := netip.ParsePrefix(a.String()); err == nil {
				f.addrs = append(f.addrs, prefix)
			}
		}
		slices.SortStableFunc(f.addrs, func(a, b netip.Prefix) int { return preference(a.Addr()) - preference(b.Addr()) })
		all = append(all, f)
	}
	return all, nil
}

// host returns one of the interface's addresses as peers have to write it.
func (f *networkInterface) host(a netip.Prefix) string {
	ip := a.Addr().Unmap()
	if ip.Is6() && ip.IsLinkLocalUnicast() {
		ip = ip.WithZone(f.name)
	}
	return ip.String()
}

// pick finds what COHORT_INTERFACE asks for: an interface's name (its IPv4
// address before IPv6, neither link-local unless there is nothing else), an IP
// address of this machine, or a network in CIDR notation that has one.
func pick(wanted string, all []networkInterface) (Choice, error) {
	why := envvar.Interface.Assign(wanted)
	problem := "no interface has that name, address or network"
	address, notAddress := netip.ParseAddr(wanted)
	network, notNetwork := netip.ParsePrefix(wanted)
	for i := range all {
		f := &all[i]
		if f.name == wanted {
			switch {
			case !f.up:
				problem = "that interface is down"
			case len(f.addrs) == 0:
				problem = "that interface has no IP address"
			default:
				return Choice{Host: f.host(f.addrs[0]), Interface: f.name, Why: why}, nil
			}
			continue
		}
		for _, a := range f.addrs {
			ip := a.Addr().Unmap()
			same := notAddress == nil && ip == address.Unmap().WithZone("") && (address.Zone() == "" || address.Zone() == f.name)
			within := notNetwork == nil && network.Masked().Contains(ip)
			if !same && !within {
				continue
			}
			if !f.up {
				problem = "its interface " + f.name + " is down"
				continue
			}
			return Choice{Host: f.host(a), Interface: f.name, Why: why}, nil
		}
	}
	var there []string
	for i := range all {
		if f := &all[i]; f.up && len(f.addrs) > 0 {
			there = append(there, f.name+" ("+f.host(f.addrs[0])+")")
		}
	}
	return Choice{}, &envvar.Error{Var: envvar.Interface, Value: wanted,
		Want: "the name, an IP address or a network (CIDR) of one of " + strings.Join(there, ", ") + ": " + problem}
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
