// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/internal/fingerprint"
)

// judgeReach names the host at fault where one host is in all links that fail, and else the
// pairs.
func judgeReach(s *Survey) (out []Finding) {
	good := s.good()
	n := len(good)
	to, from := map[int][]*Link{}, map[int][]*Link{}
	tries, tried := map[int]int{}, map[int]int{}
	for i := range s.Links {
		tries[s.Links[i].From]++
		tried[s.Links[i].To]++
		if l := &s.Links[i]; l.Kind != OK {
			to[l.To] = append(to[l.To], l)
			from[l.From] = append(from[l.From], l)
		}
	}
	told := map[*Link]bool{}
	tell := func(links []*Link) (fresh bool) {
		for _, l := range links {
			fresh = fresh || !told[l]
			told[l] = true
		}
		return fresh
	}
	if n > 2 {
		for _, i := range good { // who is cut off altogether
			if len(to[i]) > 0 && len(to[i]) == tried[i] && len(from[i]) == tries[i] {
				tell(to[i])
				tell(from[i])
				out = append(out, s.at(i, Problem, fmt.Sprintf("it and the other hosts cannot connect to each other: %s", to[i][0].says()), s.mendReach(to[i])))
			}
		}
		for _, i := range good {
			if len(to[i]) > 0 && len(to[i]) == tried[i] && tell(to[i]) {
				out = append(out, s.at(i, Problem, fmt.Sprintf("no other host can connect to it: %s", to[i][0].says()), s.mendReach(to[i])))
			}
			if len(from[i]) > 0 && len(from[i]) == tries[i] && tell(from[i]) {
				out = append(out, s.at(i, Problem, fmt.Sprintf("it cannot connect to any other host: %s", from[i][0].says()), s.mendOutput(from[i])))
			}
		}
	}
	for i := range s.Links {
		l := &s.Links[i]
		if l.Kind == OK || told[l] {
			continue
		}
		out = append(out, s.at(l.To, Problem, fmt.Sprintf("%s cannot connect to it: %s", s.Hosts[l.From].Name, l.says()), s.mendReach([]*Link{l})))
	}
	return out
}

// says is what has happened on a link, for a sentence.
func (l *Link) says() string {
	at := ""
	if l.Addr.IsValid() {
		at = fmt.Sprintf(" at %s", l.Addr)
	}
	switch l.Kind {
	case TimedOut:
		return "nobody answers" + at + ", as with a firewall that drops, or a wrong route"
	case Refused:
		return "the connection is refused" + at + ", as with a firewall that rejects"
	case NoRoute:
		return "there is no route" + at + ", or a firewall forbids it"
	case WrongHost:
		return "another host or program answers" + at
	}
	return l.Error
}

// mendReach is the command on the host that links lead to.
func (s *Survey) mendReach(links []*Link) string {
	l := links[0]
	if l.Kind == WrongHost {
		return fmt.Sprintf("ip -br addr  # no two hosts may have the address %s", l.Addr)
	}
	f := s.Hosts[l.To].Facts
	return s.accept(f.Filter.Input, "saddr", "INPUT -s", links, func(l *Link) int { return l.From })
}

// mendOutput is the command on the host that links come from.
func (s *Survey) mendOutput(links []*Link) string {
	f := s.Hosts[links[0].From].Facts
	return s.accept(f.Filter.Output, "daddr", "OUTPUT -d", links, func(l *Link) int { return l.To })
}

// accept lets a firewall accept packets of, or to, the other ends of links.
func (s *Survey) accept(chains []string, field, legacy string, links []*Link, other func(*Link) int) string {
	var four, six []string
	for _, l := range links {
		a := s.addr(other(l))
		switch {
		case !a.IsValid():
		case a.Is4() && !slices.Contains(four, a.String()):
			four = append(four, a.String())
		case a.Is6() && !slices.Contains(six, a.String()):
			six = append(six, a.String())
		}
	}
	slices.Sort(four)
	slices.Sort(six)
	var commands []string
	for _, family := range []struct {
		name  string
		addrs []string
	}{{"ip", four}, {"ip6", six}} {
		if len(family.addrs) == 0 {
			continue
		}
		for _, chain := range chains {
			if strings.HasPrefix(chain, "inet ") || strings.HasPrefix(chain, family.name+" ") {
				commands = append(commands, fmt.Sprintf("nft insert rule %s %s %s '{ %s }' accept", quoteAll(chain), family.name, field, strings.Join(family.addrs, ", ")))
			}
		}
	}
	if commands == nil && four != nil {
		commands = []string{fmt.Sprintf("iptables -I %s %s -j ACCEPT", legacy, strings.Join(four, ","))}
	}
	if commands == nil {
		return "ip route  # and look at the firewall of both hosts"
	}
	return strings.Join(commands, " && ")
}

// judgeLarge tells of links on which large messages vanish, once for each host.
func judgeLarge(s *Survey) (out []Finding) {
	seen := map[int]bool{}
	for i := range s.Links {
		l := &s.Links[i]
		if l.Kind != OK || l.Large == "" {
			continue
		}
		for _, h := range []int{l.From, l.To} {
			if seen[h] {
				continue
			}
			seen[h] = true
			other := l.From + l.To - h
			f := s.Hosts[h].Facts
			device, mtu := f.device(s.addr(h)), 1500
			for _, iface := range f.Interfaces {
				if iface.Name == device && iface.MTU <= 1500 {
					mtu = 1400 // a tunnel or another network inside
				}
			}
			out = append(out, s.at(h, Problem, fmt.Sprintf("small messages between it and %s come through, and large ones do not (%s)", s.Hosts[other].Name, l.Large),
				fmt.Sprintf("ip link set dev %s mtu %d", fingerprint.Quote(device), mtu)))
		}
	}
	return out
}

// slowRates are the places in Rates of pairs that are much slower than usual.
func slowRates(s *Survey) (out []int) {
	// In bytes a second. One connection for a moment says little about links that are
	// faster than enough.
	const least, enough = 200e6 / 8, 1e9 / 8
	var all []float64
	for _, r := range s.Rates {
		all = append(all, r.BytesPerS)
	}
	usual := median(all)
	for i, r := range s.Rates {
		if r.BytesPerS < least || r.BytesPerS < min(usual/4, enough) {
			out = append(out, i)
		}
	}
	return out
}

// judgeRates names the host whose every rate in one direction is slow, and else the pair.
func judgeRates(s *Survey) (out []Finding) {
	slow := slowRates(s)
	bad, all := map[[2]int]int{}, map[[2]int]int{} // by host and direction
	const sends, receives = 0, 1
	for i, r := range s.Rates {
		for _, key := range [][2]int{{r.From, sends}, {r.To, receives}} {
			all[key]++
			if slices.Contains(slow, i) {
				bad[key]++
			}
		}
	}
	told := map[int]bool{}
	for _, i := range s.good() {
		for d, verb := range []string{"sends", "receives"} {
			key := [2]int{i, d}
			if all[key] < 2 || bad[key] < all[key] {
				continue
			}
			best := 0.0
			for _, k := range slow {
				r := s.Rates[k]
				if d == sends && r.From == i || d == receives && r.To == i {
					told[k] = true
					best = max(best, r.BytesPerS)
				}
			}
			out = append(out, s.at(i, Warning, fmt.Sprintf("it %s at most %s", verb, bits(best)), s.mendRate(i)))
		}
	}
	for _, k := range slow {
		if told[k] {
			continue
		}
		r := s.Rates[k]
		f := s.at(r.From, Warning, fmt.Sprintf("it sends %s to %s", bits(r.BytesPerS), s.Hosts[r.To].Name), s.mendRate(r.From))
		out = append(out, f)
	}
	return out
}

func bits(bytesPerS float64) string {
	if b := 8 * bytesPerS; b < 1e9 {
		return fmt.Sprintf("%.0f Mbit/s", b/1e6)
	}
	return fmt.Sprintf("%.1f Gbit/s", 8*bytesPerS/1e9)
}

// mendRate removes what shapes the traffic of a host, or says where to look.
func (s *Survey) mendRate(host int) string {
	f := s.Hosts[host].Facts
	device := f.device(s.addr(host))
	if c := f.shaper(device); c != "" {
		return c
	}
	if device == "" {
		device = "NAME"
	}
	device = fingerprint.Quote(device)
	return fmt.Sprintf("ethtool %s; ip -s link show dev %s  # speed, duplex, errors: cable and port of the switch", device, device)
}

// judgeLatency names hosts whose every round trip is long, and else pairs.
func judgeLatency(s *Survey) (out []Finding) {
	const most = 5000 // µs
	var all []float64
	count, long, worst := map[int]int{}, map[int]int{}, map[int]float64{}
	var links []*Link
	for i := range s.Links {
		if l := &s.Links[i]; l.Kind == OK && l.Micros > 0 {
			all = append(all, l.Micros)
			links = append(links, l)
		}
	}
	usual := median(all)
	slow := func(l *Link) bool { return l.Micros > most && (l.Micros > 5*usual || len(s.good()) == 2) }
	for _, l := range links {
		for _, h := range []int{l.From, l.To} {
			count[h]++
			if slow(l) {
				long[h]++
				worst[h] = max(worst[h], l.Micros)
			}
		}
	}
	told := map[int]bool{}
	for _, h := range s.good() {
		if len(s.good()) > 2 && count[h] > 0 && long[h] == count[h] {
			told[h] = true
			out = append(out, s.at(h, Warning, fmt.Sprintf("a round trip to it takes %.1f ms", worst[h]/1e3), s.mendRate(h)))
		}
	}
	for _, l := range links {
		if slow(l) && !told[l.From] && !told[l.To] && l.From < l.To {
			h := l.To
			if f := s.Hosts[l.From].Facts; f.shaper(f.device(s.addr(l.From))) != "" {
				h = l.From
			}
			out = append(out, s.at(h, Warning, fmt.Sprintf("a round trip between %s and %s takes %.1f ms", s.Hosts[l.From].Name, s.Hosts[l.To].Name, l.Micros/1e3), s.mendRate(h)))
		}
	}
	return out
}
