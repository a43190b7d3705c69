// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/internal/fingerprint"
)

// at makes a finding of a host.
func (s *Survey) at(host int, l Level, what, mend string) Finding {
	return Finding{Level: l, Hosts: []string{s.Hosts[host].Name}, What: what, Mend: mend}
}

func judgeAnswers(s *Survey) (out []Finding) {
	versions := map[string]int{}
	for i := range s.Hosts {
		h := &s.Hosts[i]
		if h.Error != "" {
			mend := fmt.Sprintf("ssh -o BatchMode=yes %s true  # must work without a question", h.Name)
			switch {
			case strings.Contains(h.Error, "version"):
				mend = "install the same version of Cohort on all hosts"
			case strings.Contains(h.Error, "not found") || strings.Contains(h.Error, "No such file"):
				mend = "copy this program to the host, or say by --remote-cohort where it is"
			}
			out = append(out, s.at(i, Problem, h.Error, mend))
			continue
		}
		versions[h.Version]++
		for j := range i {
			f, g := h.Facts, s.Hosts[j].Facts
			if f != nil && g != nil && s.Hosts[j].Error == "" && f.Machine != "" && f.Machine == g.Machine {
				out = append(out, Finding{Level: Problem, Hosts: []string{s.Hosts[j].Name, h.Name},
					What: fmt.Sprintf("%s and %s are the same host", s.Hosts[j].Name, h.Name), Mend: "name each host once"})
			}
		}
	}
	if len(versions) > 1 {
		usual, most := "", 0
		for i := range s.Hosts {
			if n := versions[s.Hosts[i].Version]; s.Hosts[i].Error == "" && n > most {
				usual, most = s.Hosts[i].Version, n
			}
		}
		for _, i := range s.good() {
			if v := s.Hosts[i].Version; v != usual {
				out = append(out, s.at(i, Problem, fmt.Sprintf("it has %s, and most hosts have %s", v, usual), "install the same version of Cohort on all hosts"))
			}
		}
	}
	return out
}

func judgeInterfaces(s *Survey) (out []Finding) {
	for _, i := range s.good() {
		f := s.Hosts[i].Facts
		if f.address().IsValid() {
			continue
		}
		down := []string{}
		for _, key := range f.Print.Keys(fingerprint.Network) {
			if name, ok := strings.CutPrefix(key, "state."); ok && f.Print.Get(fingerprint.Network, key) == "down" {
				down = append(down, name)
			}
		}
		mend := "ip link set dev NAME up && ip addr add ADDRESS dev NAME"
		if len(down) > 0 {
			mend = "ip link set dev " + fingerprint.Quote(down[0]) + " up"
		}
		out = append(out, s.at(i, Problem, "no interface is up that other hosts could reach", mend))
	}
	return out
}

func judgeOwnNames(s *Survey) (out []Finding) {
	for _, i := range s.good() {
		for _, l := range s.Hosts[i].Facts.Lookups {
			if !l.Own || len(l.Addrs) == 0 || !l.Addrs[0].IsLoopback() {
				continue
			}
			mend := "export GLOO_SOCKET_IFNAME=NAME  # the interface that others reach"
			if a := s.addr(i); a.IsValid() {
				mend = mendHosts(a.String()+" "+l.Name, l.Name)
			}
			out = append(out, s.at(i, Warning, fmt.Sprintf("its own name %s leads to %s", l.Name, l.Addrs[0]), mend))
		}
	}
	return out
}

func judgeMasterAddr(s *Survey) (out []Finding) {
	for _, i := range s.good() {
		f := s.Hosts[i].Facts
		a, err := netip.ParseAddr(f.MasterAddr)
		if f.MasterAddr == "localhost" || err == nil && a.IsLoopback() {
			out = append(out, s.at(i, Problem, "MASTER_ADDR is "+f.MasterAddr, "export MASTER_ADDR="+s.addr(0).String()))
		}
	}
	return out
}

func judgeNames(s *Survey) (out []Finding) {
	for _, l := range s.Links {
		to, from := s.Hosts[l.To].Facts, s.Hosts[l.From].Facts
		if l.Lookup == nil || to == nil || from == nil || !to.address().IsValid() {
			continue
		}
		name := l.Lookup.Name
		mend := "give all hosts the same file of host names"
		if a := s.addr(l.To); a.IsValid() {
			mend = mendHosts(a.String()+" "+name, name)
		}
		switch a := l.Lookup.Addrs; {
		case l.Lookup.Error != "" || len(a) == 0:
			out = append(out, s.at(l.From, Problem, fmt.Sprintf("the name %s leads nowhere there: %s", name, l.Lookup.Error), mend))
		case a[0].IsLoopback():
			out = append(out, s.at(l.From, Problem, fmt.Sprintf("the name %s leads to %s there, which is the host itself", name, a[0]), mend))
		case !slices.ContainsFunc(a, to.has):
			out = append(out, s.at(l.From, Warning, fmt.Sprintf("the name %s leads to %s there, which is no address of that host", name, a[0]), mend))
		case l.Lookup.Millis > 1000:
			out = append(out, s.at(l.From, Warning, fmt.Sprintf("to find the name %s takes %.1f s there", name, float64(l.Lookup.Millis)/1e3), mend))
		}
	}
	return out
}

func judgeClocks(s *Survey) (out []Finding) {
	const most = 500 // ms
	var all []float64
	good := s.good()
	for _, i := range good {
		all = append(all, s.Hosts[i].Ahead)
	}
	usual := median(all)
	if len(good) == 2 { // who is right? this host's own clock says
		usual = 0
		if math.Abs(all[0]) > most && math.Abs(all[1]) > most {
			usual = all[0]
		}
	}
	for _, i := range good {
		h := &s.Hosts[i]
		if off := h.Ahead - usual; math.Abs(off)-h.Unsure > most {
			word := "ahead"
			if off < 0 {
				word = "behind"
			}
			out = append(out, s.at(i, Warning, fmt.Sprintf("its clock is %.1f s %s", math.Abs(off)/1e3, word), mendClock(h.Facts)))
		}
	}
	return out
}

// mendClock is the command for the program that keeps a host's clock.
func mendClock(f *Facts) string {
	switch f.Print.Get(fingerprint.Clock, "source") {
	case "chrony":
		return "chronyc makestep"
	case "systemd-timesyncd":
		return "systemctl restart systemd-timesyncd"
	case "ntpd":
		return "systemctl restart ntpd"
	}
	return "apt-get install chrony && chronyc makestep  # or another program that keeps the clock"
}

func judgeShared(s *Survey) (out []Finding) {
	for _, i := range s.Unseen {
		out = append(out, s.at(i, Warning, fmt.Sprintf("%s there is not the directory of %s", s.Dir, s.Hosts[s.Maker].Name), "mount the file system of "+s.Dir+" on all hosts, or choose a directory that they share"))
	}
	return out
}

// slowHosts are the hosts that compute at less than half of the usual rate.
func slowHosts(s *Survey) (out []int) {
	var all []float64
	for _, i := range s.good() {
		if r := s.Hosts[i].Facts.Rates; r != nil {
			all = append(all, r.GFlopPerSec)
		}
	}
	// Of two hosts the faster one is the usual.
	usual := median(all)
	for _, i := range s.good() {
		if r := s.Hosts[i].Facts.Rates; r != nil && r.GFlopPerSec < usual/2 {
			out = append(out, i)
		}
	}
	return out
}

func judgeSlowHosts(s *Survey) (out []Finding) {
	for _, i := range slowHosts(s) {
		f := s.Hosts[i].Facts
		mend := "top  # and end other programs; look for its temperature and power limit"
		if file := f.Print.Get(fingerprint.CPU, "quota_file"); file != "" && f.Print.Get(fingerprint.CPU, "quota") != "unlimited" {
			mend = "echo max > " + file
		}
		out = append(out, s.at(i, Warning, fmt.Sprintf("it computes %.0f GFLOP/s, less than half of most hosts", f.Rates.GFlopPerSec), mend))
	}
	return out
}

func judgeDifferences(s *Survey) (out []Finding) {
	var nodes []fingerprint.Node
	good := s.good()
	for _, i := range good {
		nodes = append(nodes, fingerprint.Node{Name: s.Hosts[i].Name, Print: s.Hosts[i].Facts.Print})
	}
	for _, d := range fingerprint.Compare(nodes) {
		if d.Section == fingerprint.Network && d.Key == "own_name" { // told by its own check
			continue
		}
		level := Warning
		if d.Kind == fingerprint.Must {
			level = Problem
		}
		value := func(v string) string {
			if v == "" {
				return "missing"
			}
			return strings.TrimSpace(v + " " + d.Unit)
		}
		out = append(out, Finding{Level: level, Hosts: []string{d.Node}, What: fmt.Sprintf("%s is %s, and on most hosts %s", d.What(), value(d.Found), value(d.Expected)), Why: d.Why, Mend: d.Mend})
	}
	return out
}
