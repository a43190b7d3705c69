// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cohort-ml/cohort/internal/devices"
	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/internal/fingerprint"
	"github.com/cohort-ml/cohort/internal/memlimit"
)

const (
	// lookupFor bounds the search for a name.
	lookupFor = 5 * time.Second
	// measureFor is how long the rates of the processors are measured.
	measureFor = 60 * time.Millisecond
)

// DefaultPort is the port of rank 0 that launchers choose if nobody says another.
const DefaultPort = 29500

// Collect reads the facts of this host.
func Collect(ctx context.Context, o Options) *Facts {
	f := &Facts{Options: o, Machine: machine()}
	f.Host, _ = os.Hostname()
	f.MasterAddr, _ = envvar.MasterAddr.Lookup()
	// What waits for disks, names or other programs goes side by side; what measures
	// processors runs alone, behind them.
	var waits sync.WaitGroup
	waits.Go(func() { f.Print = fingerprint.Collect(ctx, fingerprint.Options{Environ: os.Environ()}) })
	waits.Go(func() { f.collectDisks() })
	waits.Go(func() { f.collectNames(ctx) })
	waits.Go(func() { f.Filter = collectFilter(ctx) })
	waits.Go(func() {
		l := devices.Find(ctx)
		f.GPUs = l.GPUs
		f.GPUNotes = l.Notes
	})
	f.collectInterfaces()
	f.collectMemory()
	f.Loopback = tryLoopback()
	f.PortError = tryPort(o.Port)
	waits.Wait()
	threads := max(1, int(usable(f.Print)))
	if r, err := devices.Measure(ctx, threads, measureFor); err == nil {
		f.Rates = &r
	}
	return f
}

// usable returns how many processors' time this host's processes may use.
func usable(p *fingerprint.Fingerprint) float64 {
	n, err := strconv.ParseFloat(p.Get(fingerprint.CPU, "allowed"), 64)
	if err != nil {
		return 0
	}
	if q, err := strconv.ParseFloat(p.Get(fingerprint.CPU, "quota"), 64); err == nil && q < n {
		return q
	}
	return n
}

func (f *Facts) collectDisks() {
	dir := f.Options.Dir
	if dir == "" {
		dir = "."
	}
	f.Disks = append(f.Disks, readDisk("dir", dir), readDisk("tmp", os.TempDir()))
	if d := readDisk("shm", "/dev/shm"); d.FS != "" || d.Error == "" {
		f.Disks = append(f.Disks, d)
	}
}

func (f *Facts) collectNames(ctx context.Context) {
	names := []string{f.Host, "localhost"}
	f.Lookups = make([]Lookup, len(names))
	var all sync.WaitGroup
	for i, name := range names {
		all.Go(func() { f.Lookups[i] = lookUp(ctx, name) })
	}
	all.Wait()
	f.Lookups[0].Own = true
}

func lookUp(ctx context.Context, name string) Lookup {
	ctx, cancel := context.WithTimeout(ctx, lookupFor)
	defer cancel()
	l, begin := Lookup{Name: name}, time.Now()
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", name)
	l.Millis = time.Since(begin).Milliseconds()
	if err != nil {
		l.Error = err.Error()
		var dns *net.DNSError
		if errors.As(err, &dns) {
			l.Error = dns.Err
		}
	}
	for _, a := range addrs {
		if a = a.Unmap(); !slices.Contains(l.Addrs, a) {
			l.Addrs = append(l.Addrs, a)
		}
	}
	return l
}

func (f *Facts) collectInterfaces() {
	all, err := net.Interfaces()
	if err != nil {
		return
	}
	for _, i := range all {
		if i.Flags&net.FlagUp == 0 {
			continue
		}
		out := Interface{Name: i.Name, MTU: i.MTU, Loopback: i.Flags&net.FlagLoopback != 0}
		addrs, _ := i.Addrs()
		for _, a := range addrs {
			p, err := netip.ParsePrefix(a.String())
			if err == nil && !p.Addr().IsLinkLocalUnicast() {
				out.Addrs = append(out.Addrs, netip.PrefixFrom(p.Addr().Unmap(), p.Bits()))
			}
		}
		f.Interfaces = append(f.Interfaces, out)
	}
}

func (f *Facts) collectMemory() {
	for _, l := range memlimit.Limits() {
		room := l.Room()
		if l.Scope == "machine" { // of which others use much
			if free := meminfo("MemAvailable:"); free > 0 {
				room = free
			}
		}
		if f.RoomOf == "" || room < f.Room {
			f.Room, f.RoomOf = room, l.Source
		}
	}
	f.Kills = oomKills()
}

// tryLoopback connects this host to itself.
func tryLoopback() string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err.Error()
	}
	defer l.Close()
	c, err := net.DialTimeout("tcp", l.Addr().String(), 2*time.Second)
	if err != nil {
		return err.Error()
	}
	c.Close()
	return ""
}

// tryPort listens at a port for a moment.
func tryPort(port int) string {
	if port == 0 {
		return ""
	}
	l, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
	if err != nil {
		var sys *os.SyscallError
		if errors.As(err, &sys) {
			return sys.Err.Error()
		}
		return err.Error()
	}
	l.Close()
	return ""
}

// meminfo returns a value of /proc/meminfo in bytes, 0 if there is none.
func meminfo(key string) uint64 {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if w := strings.Fields(line); len(w) > 1 && w[0] == key {
			n, err := strconv.ParseUint(w[1], 10, 50)
			if err == nil {
				return n << 10
			}
		}
	}
	return 0
}
