// SPDX-License-Identifier: Apache-2.0

package fingerprint

import (
	"context"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// nameTimeout bounds the search for the address of the host's own name.
const nameTimeout = 2 * time.Second

// inside are beginnings of the names of interfaces that only containers and virtual machines
// of this host use.
var inside = []string{"veth", "docker", "br-", "virbr", "cni", "flannel", "cali", "tap", "vnet", "kube-", "lxc", "podman"}

// collectNetwork reads interfaces, names and the settings of the kernel.
func (f *Fingerprint) collectNetwork(ctx context.Context, s source) {
	all, _ := net.Interfaces()
	for _, i := range all {
		if i.Flags&net.FlagLoopback != 0 || slices.ContainsFunc(inside, func(p string) bool { return strings.HasPrefix(i.Name, p) }) {
			continue
		}
		families, addresses := "", []string{}
		addrs, _ := i.Addrs()
		for _, a := range addrs {
			p, err := netip.ParsePrefix(a.String())
			if err != nil || p.Addr().IsLinkLocalUnicast() {
				continue
			}
			addresses = append(addresses, p.String())
			family := "ipv6"
			if p.Addr().Unmap().Is4() {
				family = "ipv4"
			}
			if !strings.Contains(families, family) {
				families = strings.TrimSpace(families + " " + family)
			}
		}
		state := "up"
		if i.Flags&net.FlagUp == 0 {
			state = "down"
		} else if s.read("/sys/class/net/"+i.Name+"/carrier") == "0" {
			state = "no carrier"
		}
		if len(addresses) == 0 && state != "up" {
			continue // nobody uses it
		}
		f.Set(Network, "mtu."+i.Name, strconv.Itoa(i.MTU))
		f.Set(Network, "state."+i.Name, state)
		f.Set(Network, "families."+i.Name, families)
		f.Set(Network, "address."+i.Name, strings.Join(addresses, " "))
		if speed := s.read("/sys/class/net/" + i.Name + "/speed"); speed != "" && speed != "-1" {
			f.Set(Network, "speed."+i.Name, speed)
		}
	}
	f.Set(Network, "own_name", ownName(ctx))
	for key, file := range map[string]string{
		"ports": "net/ipv4/ip_local_port_range", "congestion": "net/ipv4/tcp_congestion_control", "rmem_max": "net/core/rmem_max",
		"wmem_max": "net/core/wmem_max", "tcp_rmem": "net/ipv4/tcp_rmem", "tcp_wmem": "net/ipv4/tcp_wmem", "somaxconn": "net/core/somaxconn",
		"rp_filter": "net/ipv4/conf/all/rp_filter",
	} {
		f.Set(Network, key, strings.Join(strings.Fields(s.read("/proc/sys/"+file)), " "))
	}
	var servers []string
	for line := range strings.Lines(s.read("/etc/resolv.conf")) {
		if words := strings.Fields(line); len(words) > 1 && words[0] == "nameserver" {
			servers = append(servers, words[1])
		}
	}
	f.Set(Network, "nameservers", strings.Join(servers, " "))
}

// ownName says where the host's own name leads: address, loopback (of all addresses one), or
// nowhere.
func ownName(ctx context.Context) string {
	host, err := os.Hostname()
	if err != nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, nameTimeout)
	defer cancel()
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil || len(addrs) == 0 {
		return "nowhere"
	}
	for _, a := range addrs {
		if a.Unmap().IsLoopback() {
			return "loopback " + a.Unmap().String()
		}
	}
	return "address"
}
