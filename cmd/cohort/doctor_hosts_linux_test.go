// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/internal/doctor"
)

var allFaults = flag.Bool("doctor", false, "plant all faults of TestDoctorHosts (root; minutes)")

// TestDoctorHosts: faults that are planted in namespaces are found on the right host, and the
// command that a finding prints mends it. Nothing is found on hosts without a fault.
func TestDoctorHosts(t *testing.T) {
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("there is no nft (Debian: nftables)")
	}
	m := newMachines(t, 3)
	own, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range m.names {
		// ip netns exec mounts what is there over /etc.
		dir := filepath.Join("/etc/netns", name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Skipf("no files of hosts for namespaces: %v", err)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
		text := "127.0.0.1 localhost\n" + m.addr(i) + " " + own + "\n"
		for j, other := range m.names {
			text += m.addr(j) + " " + other + "\n"
		}
		if err := os.WriteFile(filepath.Join(dir, "hosts"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	examine := func() []doctor.Finding {
		t.Helper()
		j := start(t, nil, "doctor", "--hosts", strings.Join(m.names, ","), "--via", "ip netns exec", "--json", "--dir", "/tmp")
		code := j.wait(t)
		stdout, stderr := j.output()
		var got struct{ Findings []doctor.Finding }
		if err := json.Unmarshal([]byte(stdout), &got); err != nil || code != min(1, len(got.Findings)) {
			t.Fatalf("code %d, %v: %.2000s %s", code, err, stdout, stderr)
		}
		return got.Findings
	}
	in := func(host int, command string) {
		t.Helper()
		if out, err := exec.Command("ip", "netns", "exec", m.names[host], "sh", "-c", command).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", command, err, out)
		}
	}
	clean := examine()
	for _, f := range clean {
		t.Logf("without a fault: %+v", f)
	}
	// What this machine itself has is no fault of a namespace.
	known := func(f doctor.Finding) bool {
		for _, c := range clean {
			if c.Check == f.Check && c.What == f.What && len(c.Hosts) == len(m.names) {
				return true
			}
		}
		return false
	}
	for _, f := range clean {
		if !known(f) {
			t.Errorf("found without a fault: %+v", f)
		}
	}
	for i, c := range []struct {
		check, plant string
		host         int
		also         string // another check that may find it too
	}{
		{"reachability", "nft 'add table inet f; add chain inet f in { type filter hook input priority 0; }; add rule inet f in iif != lo tcp flags syn drop'", 1, ""},
		{"rate", "tc qdisc add dev eth0 root tbf rate 20mbit burst 32k latency 50ms", 2, "latency"},
		{"reachability", "nft 'add table ip g; add chain ip g in { type filter hook input priority 0; }; add rule ip g in ip saddr " + m.addr(2) + " tcp flags & (syn | ack) == syn reject with tcp reset'", 0, ""},
		{"names", "sed 's/^" + m.addr(0) + "/127.0.1.1/' /etc/hosts > /tmp/hosts.planted; cat /tmp/hosts.planted > /etc/hosts; rm /tmp/hosts.planted", 1, ""},
		{"port range", "sysctl -qw net.ipv4.ip_local_port_range='40000 40999'", 2, "differences"},
		{"differences", "ip link set dev eth0 mtu 1400", 2, ""},
		{"loopback", "ip link set dev lo down", 1, ""},
	} {
		if i > 0 && !*allFaults {
			break
		}
		t.Run(fmt.Sprintf("%s %d", c.check, i), func(t *testing.T) {
			in(c.host, c.plant)
			var mend []string
			for _, f := range examine() {
				if known(f) {
					continue
				}
				switch right := len(f.Hosts) == 1 && f.Hosts[0] == m.names[c.host]; {
				case right && (f.Check == c.check || f.Check == c.also):
					if f.Check == c.check {
						mend = append(mend, f.Mend)
					}
				case f.Check != c.also:
					t.Errorf("found %+v", f)
				}
			}
			if len(mend) != 1 {
				t.Fatalf("%d findings %q on host %d, want one", len(mend), c.check, c.host)
			}
			t.Logf("mended by: %s", mend[0])
			in(c.host, mend[0])
			for _, f := range examine() {
				if !known(f) {
					t.Errorf("after %q: %+v", mend[0], f)
				}
			}
		})
	}
}

// TestDoctorOverSSH: hosts that real servers of ssh serve are examined, each pair of them, and
// what is planted between two is found there. Their names are of ssh's configuration alone.
func TestDoctorOverSSH(t *testing.T) {
	for _, name := range []string{"nft", "tc"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("there is no %s (Debian: nftables, iproute2)", name)
		}
	}
	m := newMachines(t, 3)
	names, addrs := []string{"a", "b", "c"}, []string{}
	for i := range names {
		addrs = append(addrs, m.addr(i)+":2222")
	}
	s := newSSHHosts(t, names, addrs, func(i int, start func()) { m.in(m.names[i], start) })
	examine := func() (found []doctor.Finding, survey *doctor.Survey) {
		t.Helper()
		var j *job
		m.in(m.names[0], func() {
			j = start(t, nil, "doctor", "--hosts", "a:2,b,c:3", "--via", s.command(), "--json")
		})
		code := j.wait(t)
		stdout, stderr := j.output()
		var got struct {
			Findings []doctor.Finding
			doctor.Survey
		}
		if err := json.Unmarshal([]byte(stdout), &got); err != nil || code != min(1, len(got.Findings)) {
			t.Fatalf("code %d, %v: %.2000s %s", code, err, stdout, stderr)
		}
		// What this machine has, each of the hosts has: that is not of the network.
		network := []string{"hosts", "interfaces", "names", "reachability", "large packets", "rate", "latency", "clocks"}
		return slices.DeleteFunc(got.Findings, func(f doctor.Finding) bool { return !slices.Contains(network, f.Check) }), &got.Survey
	}
	found, survey := examine()
	if len(found) > 0 || len(survey.Links) != 6 || len(survey.Rates) != 6 {
		t.Errorf("%d links, %d rates, findings without a fault %+v", len(survey.Links), len(survey.Rates), found)
	}
	for i, h := range survey.Hosts {
		if h.Error != "" || !h.Alias || h.Facts == nil || h.Facts.Options.Ranks != []int{2, 1, 3}[i] || h.Facts.Options.World != 6 {
			t.Errorf("host %s: %q, alias %v, %+v", h.Name, h.Error, h.Alias, h.Facts)
		}
	}
	for _, plant := range []string{
		"nft 'add table ip g; add chain ip g in { type filter hook input priority 0; }; add rule ip g in ip saddr " + m.addr(1) + " tcp flags & (syn | ack) == syn reject with tcp reset'",
		"tc qdisc add dev eth0 root tbf rate 20mbit burst 32k latency 50ms",
	} {
		host := m.names[2]
		if strings.HasPrefix(plant, "tc") {
			host = m.names[1]
		}
		if out, err := exec.Command("ip", "netns", "exec", host, "sh", "-c", plant).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", plant, err, out)
		}
	}
	told := map[string]int{}
	found, _ = examine()
	for _, f := range found {
		switch {
		case f.Check == "reachability" && slices.Equal(f.Hosts, []string{"c"}) && strings.Contains(f.What, "b cannot connect to it"),
			f.Check == "rate" && slices.Equal(f.Hosts, []string{"b"}) && strings.Contains(f.What, "sends"),
			f.Check == "latency" && slices.Equal(f.Hosts, []string{"b"}):
			told[f.Check]++
		default:
			t.Errorf("found %+v", f)
		}
	}
	if told["reachability"] != 1 || told["rate"] == 0 {
		t.Errorf("of the cut pair and the slow host was found %v", told)
	}
}

// TestDoctorHostsRefused: what cannot work is one message.
func TestDoctorHostsRefused(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--hosts", "a,a"}, "a"},
		{[]string{"--hosts", "a"}, "one host"},
		{[]string{"--hosts", "a,b", "--via", "ssh -i 'my key'"}, "quotes are not read"},
		{[]string{"--hosts", "a,b", "--hostfile", "f"}, "both name the hosts"},
		{[]string{"--hosts", "a,b", t.TempDir()}, "two examinations"},
		{[]string{"--allocation"}, "no batch job of several nodes"},
		{[]string{"--allocation", "--hosts", "a,b"}, "both name the hosts"},
		{[]string{"--hostfile", filepath.Join(t.TempDir(), "none")}, "none"},
	} {
		j := start(t, nil, append([]string{"doctor"}, c.args...)...)
		code := j.wait(t)
		if _, stderr := j.output(); code != 2 || !strings.Contains(stderr, c.want) {
			t.Errorf("%q: code %d, %q", c.args, code, stderr)
		}
	}
	// Hosts that do not answer are findings.
	j := start(t, nil, "doctor", "--hosts", "a,b", "--via", "false")
	code := j.wait(t)
	if stdout, _ := j.output(); code != 1 || !strings.Contains(stdout, "problem: hosts: a") {
		t.Errorf("code %d, %s", code, stdout)
	}
}
