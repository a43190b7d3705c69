// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/internal/devices"
	"github.com/cohort-ml/cohort/internal/fingerprint"
	"github.com/cohort-ml/cohort/internal/loaded"
)

// cluster is a number of simulated hosts on a network in memory.
type cluster struct {
	t     *testing.T
	hosts []*simulated
	mu    sync.Mutex
	at    map[netip.Addr]chan net.Conn
	serve sync.WaitGroup
	// Faults; nil for none.
	dial    func(from, to int) error               // of a connection
	large   func(from, to int) bool                // whether large messages vanish
	slow    func(from, to int) bool                // whether data goes slowly
	names   func(on int, name string) []netip.Addr // where names lead
	refuses map[int]error                          // of a login
}

type simulated struct {
	c     *cluster
	index int
	facts *Facts
	now   func() time.Time
	say   string // version
}

func address(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}) }

func newCluster(t *testing.T, n int) *cluster {
	c := &cluster{t: t, at: map[netip.Addr]chan net.Conn{}}
	for i := range n {
		f := healthy()
		f.Host, f.Machine = fmt.Sprintf("n%d", i), fmt.Sprint(i)
		f.Options.Dir = ""
		f.Interfaces[1].Addrs = []netip.Prefix{netip.PrefixFrom(address(i), 16)}
		f.Lookups[0] = Lookup{Name: f.Host, Own: true, Addrs: []netip.Addr{address(i)}}
		f.Rates = &devices.Rates{Threads: 8, GFlopPerSec: 500}
		c.hosts = append(c.hosts, &simulated{c: c, index: i, facts: f, now: time.Now, say: "cohort v1"})
	}
	return c
}

type simListener struct {
	addr  netip.AddrPort
	conns chan net.Conn
	once  sync.Once
	ended chan struct{}
}

func (l *simListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.ended:
		return nil, net.ErrClosed
	}
}
func (l *simListener) Close() error   { l.once.Do(func() { close(l.ended) }); return nil }
func (l *simListener) Addr() net.Addr { return net.TCPAddrFromAddrPort(l.addr) }

func (h *simulated) Listen() (net.Listener, error) {
	l := &simListener{addr: netip.AddrPortFrom(address(h.index), 4711), conns: make(chan net.Conn), ended: make(chan struct{})}
	h.c.mu.Lock()
	h.c.at[address(h.index)] = l.conns
	h.c.mu.Unlock()
	return l, nil
}

func (h *simulated) Dial(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	b := to.Addr().As4()
	other := int(b[2])<<8 | int(b[3])
	if h.c.dial != nil {
		if err := h.c.dial(h.index, other); err != nil {
			return nil, err
		}
	}
	h.c.mu.Lock()
	there := h.c.at[to.Addr()]
	h.c.mu.Unlock()
	if there == nil {
		return nil, syscall.ECONNREFUSED
	}
	a, z := net.Pipe()
	select {
	case there <- z:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return &simConn{Conn: a, from: h.index, to: other, c: h.c}, nil
}

// simConn is the end of who connects.
type simConn struct {
	net.Conn
	from, to int
	c        *cluster
}

func (c *simConn) Write(b []byte) (int, error) {
	if len(b) > 1500 && c.c.large != nil && c.c.large(c.from, c.to) {
		return 0, os.ErrDeadlineExceeded
	}
	return c.Conn.Write(b)
}

func (c *simConn) Read(b []byte) (int, error) {
	if len(b) > 1500 && c.c.slow != nil && c.c.slow(c.to, c.from) {
		time.Sleep(2 * time.Millisecond) // the slow line itself
		b = b[:1500]
	}
	return c.Conn.Read(b)
}

func (h *simulated) LookUp(_ context.Context, name string) Lookup {
	var i int
	if _, err := fmt.Sscanf(name, "n%d", &i); err != nil {
		return Lookup{Name: name, Error: "no such host"}
	}
	l := Lookup{Name: name, Addrs: []netip.Addr{address(i)}}
	if h.c.names != nil {
		if a := h.c.names(h.index, name); a != nil {
			l.Addrs = a
		}
	}
	return l
}

type ends2 struct {
	io.Reader
	io.Writer
	close func() error
}

func (e ends2) Close() error { return e.close() }

func (c *cluster) open(ctx context.Context, name string) (Pipe, error) {
	var i int
	if _, err := fmt.Sscanf(name, "n%d", &i); err != nil {
		return nil, err
	}
	if err := c.refuses[i]; err != nil {
		return nil, err
	}
	h := c.hosts[i]
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	c.serve.Go(func() {
		host := Host{Version: h.say, Network: h, Now: h.now,
			Collect: func(_ context.Context, o Options) *Facts { f := *h.facts; f.Options = o; return &f },
			Measure: func(context.Context) (devices.Rates, error) { return *h.facts.Rates, nil }}
		_, _ = io.WriteString(outW, "Welcome to a host\n")
		err := host.Serve(context.Background(), inR, outW)
		outW.CloseWithError(err)
	})
	return ends2{outR, inW, func() error { inW.Close(); outR.Close(); return nil }}, nil
}

// examine examines all hosts, and returns what was found.
func (c *cluster) examine() ([]Finding, *Survey) {
	c.t.Helper()
	p := Plan{Options: Options{Ranks: 4, World: 4 * len(c.hosts)}, Version: "cohort v1", Open: c.open}
	for i := range c.hosts {
		p.Hosts = append(p.Hosts, fmt.Sprintf("n%d", i))
	}
	s, err := Examine(c.t.Context(), p)
	if err != nil {
		c.t.Fatal(err)
	}
	c.serve.Wait() // no process is left
	return JudgeHosts(s), s
}

var manyHosts = flag.Int("hosts", 0, "simulate this number of hosts too (TestSimulatedHosts)")

// TestSimulatedHosts: 64 hosts within 5 seconds and, with -hosts 1000, 1,000 within 30,
// without a finding.
func TestSimulatedHosts(t *testing.T) {
	for _, c := range []struct {
		n    int
		most time.Duration
	}{{2, 5 * time.Second}, {64, 5 * time.Second}, {*manyHosts, 30 * time.Second}} {
		if c.n == 0 {
			continue
		}
		began := time.Now()
		found, s := newCluster(t, c.n).examine()
		took := time.Since(began)
		t.Logf("%d hosts: %v, %d links, %d rates", c.n, took.Round(time.Millisecond), len(s.Links), len(s.Rates))
		if want := c.n * min(c.n-1, someReach+max(0, fullReach-c.n)); len(s.Links) != want {
			t.Errorf("%d links, want %d", len(s.Links), want)
		}
		for _, f := range found {
			// Pairs that send at the same time share the processors here.
			if c.n < 64 || f.Check != "rate" && f.Check != "latency" {
				t.Errorf("%d healthy hosts: %+v", c.n, f)
			}
		}
		if most := loaded.Allow(c.most); took > most {
			t.Errorf("%d hosts took %v, more than %v", c.n, took, most)
		}
	}
}

// TestPlantedBetween: each fault between hosts is found, on the right host, and nothing else.
func TestPlantedBetween(t *testing.T) {
	loop := netip.MustParseAddr("127.0.1.1")
	set := func(host int, section, key, value string) func(*cluster) {
		return func(c *cluster) { c.hosts[host].facts.Print.Set(section, key, value) }
	}
	tested := map[string]bool{}
	for _, c := range []struct {
		check string
		hosts string
		what  string
		mend  string
		fault func(c *cluster)
	}{
		{"hosts", "n2", "permission denied", "ssh -o BatchMode=yes n2 true", func(c *cluster) { c.refuses = map[int]error{2: errors.New("permission denied")} }},
		{"hosts", "n3", "cohort v2, and most hosts have cohort v1", "same version", func(c *cluster) { c.hosts[3].say = "cohort v2" }},
		{"hosts", "n0 n4", "are the same host", "once", func(c *cluster) { c.hosts[4].facts.Machine = "0" }},
		{"own name", "n1", "its own name n1 leads to 127.0.1.1", "10.0.0.1 n1", func(c *cluster) { c.hosts[1].facts.Lookups[0].Addrs = []netip.Addr{loop} }},
		{"names", "n4", "the name n0 leads to 127.0.1.1 there", "10.0.0.0 n0", func(c *cluster) {
			c.names = func(on int, name string) []netip.Addr {
				if on == 4 && name == "n0" {
					return []netip.Addr{loop}
				}
				return nil
			}
		}},
		{"names", "n4", "the name n1 leads to 10.0.0.77", "10.0.0.1 n1", func(c *cluster) {
			c.names = func(on int, name string) []netip.Addr {
				if on == 4 && name == "n1" {
					return []netip.Addr{netip.MustParseAddr("10.0.0.77")}
				}
				return nil
			}
		}},
		{"master address", "n2", "MASTER_ADDR is 127.0.0.1", "export MASTER_ADDR=10.0.0.0", func(c *cluster) { c.hosts[2].facts.MasterAddr = "127.0.0.1" }},
		{"reachability", "n3", "no other host can connect to it: nobody answers at 10.0.0.3", "nft insert rule inet filter input ip saddr '{ 10.0.0.0, 10.0.0.1, 10.0.0.2, 10.0.0.4 }' accept", func(c *cluster) {
			c.hosts[3].facts.Filter.Input = []string{"inet filter input"}
			c.dial = func(_, to int) error {
				if to == 3 {
					return syscall.ETIMEDOUT
				}
				return nil
			}
		}},
		{"reachability", "n3", "it cannot connect to any other host: there is no route", "iptables -I OUTPUT -d ", func(c *cluster) {
			c.dial = func(from, _ int) error {
				if from == 3 {
					return syscall.EHOSTUNREACH
				}
				return nil
			}
		}},
		{"reachability", "n1", "n2 cannot connect to it: the connection is refused", "iptables -I INPUT -s 10.0.0.2 -j ACCEPT", func(c *cluster) {
			c.dial = func(from, to int) error {
				if from == 2 && to == 1 {
					return syscall.ECONNREFUSED
				}
				return nil
			}
		}},
		{"reachability", "n4", "it and the other hosts cannot connect to each other", "", func(c *cluster) {
			c.dial = func(from, to int) error {
				if from == 4 || to == 4 {
					return syscall.ETIMEDOUT
				}
				return nil
			}
		}},
		{"large packets", "n0", "large ones do not", "ip link set dev eth0 mtu 1400", func(c *cluster) { c.large = func(from, to int) bool { return from == 0 && to == 1 } }},
		{"rate", "n2", "it sends at most", "tc qdisc del dev eth0 root", func(c *cluster) {
			c.hosts[2].facts.Filter.Shapers = []string{"eth0 tbf"}
			c.slow = func(from, _ int) bool { return from == 2 }
		}},
		{"rate", "n1", "Mbit/s to n3", "ethtool eth0", func(c *cluster) { c.slow = func(from, to int) bool { return from == 1 && to == 3 } }},
		{"clocks", "n1", "its clock is 3.0 s behind", "chrony", func(c *cluster) {
			c.hosts[1].now = func() time.Time { return time.Now().Add(-3 * time.Second) }
		}},
		{"slow host", "n4", "it computes 100 GFLOP/s", "top", func(c *cluster) { c.hosts[4].facts.Rates = &devices.Rates{GFlopPerSec: 100} }},
		{"interfaces", "n2", "no interface is up", "ip link set dev eth0 up", func(c *cluster) {
			c.hosts[2].facts.Interfaces = c.hosts[2].facts.Interfaces[:1]
			c.hosts[2].facts.Print.Set(fingerprint.Network, "state.eth0", "down")
		}},
		{"differences", "n3", "limits.umask is 0077, and on most hosts 0022", "umask 0022", func(c *cluster) {
			for i := range c.hosts {
				c.hosts[i].facts.Print.Set(fingerprint.Limits, "umask", "0022")
			}
			set(3, fingerprint.Limits, "umask", "0077")(c)
		}},
		{"open files", "n1", "300 files", "ulimit -n", func(c *cluster) {
			for i := range c.hosts {
				c.hosts[i].facts.Print.Set(fingerprint.Limits, "open_files", "300")
			}
		}},
	} {
		t.Run(c.check, func(t *testing.T) {
			tested[c.check] = true
			cl := newCluster(t, 5)
			c.fault(cl)
			found, _ := cl.examine()
			right := 0
			for _, f := range found {
				hosts := strings.Join(f.Hosts, " ")
				if f.Check == c.check && strings.Contains(f.What, c.what) && strings.Contains(f.Mend, c.mend) && (strings.Contains(hosts, c.hosts)) {
					right++
				} else if !(c.check == "large packets" && f.Check == c.check) && !(c.check == "interfaces" && f.Check == "reachability") {
					t.Errorf("found %+v", f)
				}
			}
			if right != 1 {
				t.Errorf("%d findings %q about %q on %s, want one: %+v", right, c.check, c.what, c.hosts, found)
			}
		})
	}
	for _, c := range Checks() {
		if c.hosts != nil && !tested[c.Name] && c.Name != "latency" && c.Name != "same directory" {
			t.Errorf("no fault for the check %q", c.Name)
		}
	}
}
