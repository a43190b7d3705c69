// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/cohort-ml/cohort/internal/fingerprint"
)

// mendHosts is the command that adds a line to the file of host names, and takes a name out
// of all others. The file may be a mount, so it is written in place.
func mendHosts(line, drop string) string {
	if !hostName.MatchString(drop) {
		return "give " + fingerprint.Quote(drop) + " its own address in /etc/hosts"
	}
	return fmt.Sprintf(`{ awk '{for(i=2;i<=NF;i++)if($i=="%s")$i="";$0=$0} NF!=1' /etc/hosts; echo %s; } > /etc/hosts.new; cat /etc/hosts.new > /etc/hosts; rm /etc/hosts.new`, drop, fingerprint.Quote(line))
}

// hostName is a name that may stand in a command.
var hostName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)

func judgeLoopback(f *Facts) []Finding {
	if f.Loopback == "" {
		return nil
	}
	if !slices.ContainsFunc(f.Interfaces, func(i Interface) bool { return i.Loopback }) {
		return one(Problem, "the interface lo is down", "ip link set dev lo up")
	}
	return one(Problem, "a connection to 127.0.0.1 fails: "+f.Loopback, "iptables -I INPUT -i lo -j ACCEPT  # let the firewall accept the interface lo")
}

func judgeLocalhost(f *Facts) []Finding {
	for _, l := range f.Lookups {
		if l.Name != "localhost" || l.Own {
			continue
		}
		mend := mendHosts("127.0.0.1 localhost", "localhost")
		if l.Error != "" {
			return one(Problem, "the name localhost leads nowhere: "+l.Error, mend)
		}
		for _, a := range l.Addrs {
			if !a.IsLoopback() {
				return one(Problem, fmt.Sprintf("the name localhost leads to %s", a), mend)
			}
		}
	}
	return nil
}

func judgeOwnName(f *Facts) []Finding {
	for _, l := range f.Lookups {
		if !l.Own {
			continue
		}
		address := "127.0.1.1" // Debian's, for a host without a network
		if a := f.address(); a.IsValid() {
			address = a.String()
		}
		mend := mendHosts(address+" "+l.Name, l.Name)
		switch {
		case l.Error != "":
			return one(Warning, fmt.Sprintf("the host's own name %s leads nowhere: %s", l.Name, l.Error), mend)
		case l.Millis > 1000:
			return one(Warning, fmt.Sprintf("to find the address of the host's own name %s takes %.1f s", l.Name, float64(l.Millis)/1e3), mend)
		}
	}
	return nil
}

// address is an address of this host that others may reach, invalid if there is none.
func (f *Facts) address() netip.Addr {
	var six netip.Addr
	for _, i := range f.Interfaces {
		for _, p := range i.Addrs {
			switch a := p.Addr(); {
			case i.Loopback || a.IsLoopback() || internal(i.Name):
			case a.Is4():
				return a
			case !six.IsValid():
				six = a
			}
		}
	}
	return six
}

// internal reports whether an interface belongs to containers of the host.
func internal(name string) bool {
	return slices.ContainsFunc([]string{"docker", "br-", "veth", "virbr", "cni", "flannel", "cali", "lxc", "podman"}, func(p string) bool { return strings.HasPrefix(name, p) })
}

func judgePort(f *Facts) []Finding {
	if f.PortError == "" {
		return nil
	}
	return one(Warning, fmt.Sprintf("port %d cannot be listened at: %s", f.Options.Port, f.PortError),
		fmt.Sprintf("ss -ltnp 'sport = :%d'  # and end that program, or give cohort run --master-port %d", f.Options.Port, f.Options.Port+1))
}

func judgePortRange(f *Facts) []Finding {
	text := f.Print.Get(fingerprint.Network, "ports")
	w := strings.Fields(text)
	if len(w) != 2 {
		return nil
	}
	low, err := strconv.Atoi(w[0])
	high, err2 := strconv.Atoi(w[1])
	if err != nil || err2 != nil || high-low+1 >= 4096 {
		return nil
	}
	return one(Problem, fmt.Sprintf("the system has %d ports for connections (net.ipv4.ip_local_port_range is %s)", high-low+1, text), "sysctl -w net.ipv4.ip_local_port_range='32768 60999'")
}

func judgeInterfaceVariables(f *Facts) (out []Finding) {
	names := []string{}
	for _, i := range f.Interfaces {
		names = append(names, i.Name)
	}
	for _, v := range []string{"COHORT_INTERFACE", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"} {
		value := f.variable(v)
		if value == "" || strings.HasPrefix(value, "^") { // NCCL: all but these
			continue
		}
		exact := v != "NCCL_SOCKET_IFNAME"
		list := value
		if l, ok := strings.CutPrefix(value, "="); ok && !exact {
			exact, list = true, l
		}
		found := false
		for word := range strings.SplitSeq(list, ",") {
			if v == "COHORT_INTERFACE" && f.covers(word) {
				found = true
			}
			found = found || slices.ContainsFunc(names, func(n string) bool { return n == word || !exact && strings.HasPrefix(n, word) })
		}
		if !found {
			out = append(out, one(Problem, fmt.Sprintf("%s=%s, and the interfaces that are up are %s", v, value, named(names)), "unset "+v)...)
		}
	}
	return out
}

// covers reports whether an address or network is of one of the interfaces.
func (f *Facts) covers(text string) bool {
	if a, err := netip.ParseAddr(text); err == nil {
		return f.has(a)
	}
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return false
	}
	for _, i := range f.Interfaces {
		for _, q := range i.Addrs {
			if p.Contains(q.Addr()) {
				return true
			}
		}
	}
	return false
}

func judgeBuffers(f *Facts) (out []Finding) {
	for _, key := range []string{"tcp_rmem", "tcp_wmem"} {
		w := strings.Fields(f.Print.Get(fingerprint.Network, key))
		if len(w) != 3 {
			continue
		}
		if most, err := strconv.ParseInt(w[2], 10, 64); err == nil && most < 1<<20 {
			good := map[string]string{"tcp_rmem": "4096 131072 6291456", "tcp_wmem": "4096 16384 4194304"}[key]
			out = append(out, one(Warning, fmt.Sprintf("net.ipv4.%s allows buffers of %s", key, size(uint64(most))), fmt.Sprintf("sysctl -w net.ipv4.%s='%s'", key, good))...)
		}
	}
	return out
}
