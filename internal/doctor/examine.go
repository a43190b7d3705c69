// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"sync"
	"time"
)

const (
	helloFor = 30 * time.Second // from the start of a host's process to its first line
	factsFor = 30 * time.Second
	// rateMillis is how long a pair of hosts is measured in each direction.
	rateMillis = 25
	// fullRounds is the number of hosts up to which each pair is measured; of more hosts,
	// each is measured with someRounds others.
	fullRounds = 24
	someRounds = 8
	// fullReach is the number of hosts up to which each host connects to each other one; of
	// more hosts, each connects to someReach others, and as many connect to it.
	fullReach = 256
	someReach = 128
	// allLarge is the number of hosts up to which each pair tries large messages.
	allLarge = 16
)

// Pipe is what a host's process reads and writes. Close ends it, and says how it ended.
type Pipe interface {
	io.ReadWriteCloser
}

// Plan says whom to examine.
type Plan struct {
	Hosts   []string
	Ranks   []int // of the job on each host; nil: as the options say
	Options Options
	Shared  bool   // whether all hosts should share the directory of the options
	Version string // of this program, which all hosts should have
	// Open starts a process on a host, which serves as [Host.Serve] does.
	Open func(ctx context.Context, host string) (Pipe, error)
	// Alias reports whether a name is one of ssh's configuration alone, which other hosts need
	// not know; nil: none is.
	Alias func(ctx context.Context, host string) bool
}

// caller asks one host.
type caller struct {
	at   int
	pipe Pipe
	r    *bufio.Reader
	enc  *json.Encoder
	mu   sync.Mutex
	dead error
}

// call sends a request and waits for its answer.
func (c *caller) call(ctx context.Context, d time.Duration, q *request) (a answer, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead != nil {
		return a, c.dead
	}
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { c.pipe.Close() })
	var line []byte
	if err = c.enc.Encode(q); err == nil {
		line, err = readLine(c.r)
	}
	if !stop() {
		err = fmt.Errorf("no answer to %q within %v", q.Do, d)
	}
	if err == nil {
		err = json.Unmarshal(line, &a)
	}
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = fmt.Errorf("the process on the host has ended%s", ending(c.pipe.Close()))
		}
		c.dead = err
		return answer{}, err
	}
	if a.Error != "" {
		return a, errors.New(a.Error)
	}
	return a, nil
}

func ending(err error) string {
	if err == nil {
		return ""
	}
	return ": " + err.Error()
}

// Examine asks all hosts, lets each connect to each other one, and returns what is known.
// A host that does not answer is in the survey with its error.
func Examine(ctx context.Context, p Plan) (*Survey, error) {
	if len(p.Hosts) < 2 {
		return nil, fmt.Errorf("doctor: %d hosts: want at least two", len(p.Hosts))
	}
	s := &Survey{Hosts: make([]Answered, len(p.Hosts)), Port: p.Options.Port}
	x := &examination{Plan: p, survey: s, callers: make([]*caller, len(p.Hosts))}
	defer x.close()
	x.each(func(i int) error { return x.open(ctx, i) })
	x.each(func(i int) error {
		o := p.Options
		if i > 0 {
			o.Port = 0 // rank 0 alone listens there
		}
		if p.Ranks != nil {
			o.Ranks = p.Ranks[i]
		}
		a, err := x.callers[i].call(ctx, factsFor, &request{Do: "facts", Options: &o})
		if err == nil && (a.Facts == nil || a.Facts.Print == nil) {
			err = errors.New("it answers without facts")
		}
		s.Hosts[i].Facts = a.Facts
		return err
	})
	x.each(func(i int) error { return x.compareClocks(ctx, i) })
	x.connect(ctx)
	x.measureRates(ctx)
	x.measureAgain(ctx)
	if p.Shared {
		x.shareFile(ctx)
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return s, nil
}

type examination struct {
	Plan
	survey  *Survey
	callers []*caller
	ports   []int
	cookies []string
}

// each calls f for all hosts that have answered so far, side by side. An error is the last
// of a host.
func (x *examination) each(f func(i int) error) {
	var all sync.WaitGroup
	for i := range x.survey.Hosts {
		if x.survey.Hosts[i].Error != "" {
			continue
		}
		all.Go(func() {
			if err := f(i); err != nil {
				x.survey.Hosts[i].Error = err.Error()
			}
		})
	}
	all.Wait()
}

func (x *examination) close() {
	var all sync.WaitGroup
	for _, c := range x.callers {
		if c == nil {
			continue
		}
		all.Go(func() {
			if c.dead == nil {
				_ = c.enc.Encode(&request{Do: "end"})
			}
			_ = c.pipe.Close()
		})
	}
	all.Wait()
}

// open starts the process on a host and reads its first line. A login may print others
// before.
func (x *examination) open(ctx context.Context, i int) error {
	h := &x.survey.Hosts[i]
	h.Name = x.Hosts[i]
	h.Alias = x.Alias != nil && x.Alias(ctx, h.Name)
	pipe, err := x.Open(ctx, h.Name)
	if err != nil {
		return err
	}
	c := &caller{at: i, pipe: pipe, r: bufio.NewReaderSize(pipe, 64<<10), enc: json.NewEncoder(pipe)}
	ctx, cancel := context.WithTimeout(ctx, helloFor)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { pipe.Close() })
	defer stop()
	for range 200 {
		line, err := readLine(c.r)
		var said hello
		if json.Unmarshal(line, &said) == nil && said.Protocol != 0 {
			if said.Protocol != protocol {
				pipe.Close()
				return fmt.Errorf("its cohort (%s) speaks version %d of the protocol, and this one version %d: install the same version on all hosts", said.Version, said.Protocol, protocol)
			}
			h.Version = said.Version
			x.callers[i] = c
			return nil
		}
		if err != nil {
			if ctx.Err() != nil {
				return fmt.Errorf("it does not answer within %v", helloFor)
			}
			return fmt.Errorf("it does not answer%s", ending(pipe.Close()))
		}
	}
	pipe.Close()
	return errors.New("it prints text where an answer should be: the shell there must not print more than 200 lines at a login")
}

// compareClocks asks a host for its time, and takes the quickest of the answers.
func (x *examination) compareClocks(ctx context.Context, i int) error {
	least := time.Duration(0)
	for range 5 {
		begin := time.Now()
		a, err := x.callers[i].call(ctx, factsFor, &request{Do: "time"})
		if err != nil {
			return err
		}
		took := time.Since(begin)
		if least != 0 && took >= least {
			continue
		}
		least = took
		ahead := time.Unix(0, a.Time).Sub(begin.Add(took / 2).Round(0))
		x.survey.Hosts[i].Ahead, x.survey.Hosts[i].Unsure = float64(ahead.Microseconds())/1e3, float64(took.Microseconds())/2e3
	}
	return nil
}

// connect lets each host connect to each other one.
func (x *examination) connect(ctx context.Context) {
	s := x.survey
	x.ports, x.cookies = make([]int, len(s.Hosts)), make([]string, len(s.Hosts))
	x.each(func(i int) error {
		b := make([]byte, cookieLen/2)
		if _, err := rand.Read(b); err != nil {
			return err
		}
		x.cookies[i] = hex.EncodeToString(b)
		a, err := x.callers[i].call(ctx, factsFor, &request{Do: "listen", Cookie: x.cookies[i]})
		x.ports[i] = a.Port
		return err
	})
	good := s.good()
	all := make([]Peer, 0, len(good))
	for _, i := range good {
		name := s.Hosts[i].Name
		if s.Hosts[i].Alias {
			name = ""
		}
		all = append(all, Peer{Index: i, Name: name, Addrs: addresses(s.Hosts[i].Facts), Port: x.ports[i], Cookie: x.cookies[i]})
	}
	results := make([][]Reached, len(s.Hosts))
	wait := time.Duration(1+len(good)/atOnce)*(6*dialFor+2*talkFor) + (1+againMost/againOnce)*(4*dialFor+2*patience) + lookupFor
	x.each(func(i int) error {
		at := slices.Index(good, i)
		// Each host begins with the one behind it, so that not all ask the same.
		peers := append(slices.Clone(all[at+1:]), all[:at]...)
		if len(good) > fullReach {
			for k := range someReach {
				peers[k] = peers[k*len(peers)/someReach]
			}
			peers = peers[:someReach]
		}
		q := &request{Do: "reach", Peers: peers}
		for d := 1; d < len(good); d++ {
			if len(good) <= allLarge || d&(d-1) == 0 {
				q.Large = append(q.Large, good[(at+d)%len(good)])
			}
		}
		a, err := x.callers[i].call(ctx, wait, q)
		results[i] = a.Reached
		return err
	})
	for i, list := range results {
		for _, r := range list {
			if r.Index >= 0 && r.Index < len(s.Hosts) && r.Index != i {
				s.Links = append(s.Links, Link{i, r.Index, r})
			}
		}
	}
}

// addresses are those by which others may reach a host.
func addresses(f *Facts) (out []netip.Addr) {
	for _, i := range f.Interfaces {
		for _, p := range i.Addrs {
			if !i.Loopback && !internal(i.Name) && !p.Addr().IsLoopback() {
				out = append(out, p.Addr())
			}
		}
	}
	return out
}

// rounds returns rounds of pairs; in each, a host is in one pair. All rounds together have
// each pair once.
func rounds(n int) (out [][][2]int) {
	m := n + n%2
	for r := range m - 1 {
		var pairs [][2]int
		add := func(a, b int) {
			if a < n && b < n {
				pairs = append(pairs, [2]int{a, b})
			}
		}
		add(m-1, r)
		for k := 1; k < m/2; k++ {
			add((r+k)%(m-1), (r-k+m-1)%(m-1))
		}
		out = append(out, pairs)
	}
	return out
}

// measureRates measures pairs of hosts in both directions, each host with one other at a
// time.
func (x *examination) measureRates(ctx context.Context) {
	s := x.survey
	good := s.good()
	if len(good) < 2 {
		return
	}
	all := rounds(len(good))
	if len(good) > fullRounds {
		step := max(1, len(all)/someRounds)
		for i := range someRounds {
			all[i] = all[i*step%len(all)]
		}
		all = all[:someRounds]
	}
	reached := map[[2]int]netip.Addr{}
	for _, l := range s.Links {
		if l.Kind == OK && l.Large == "" {
			reached[[2]int{l.From, l.To}] = l.Addr
		}
	}
	var mu sync.Mutex
	for _, pairs := range all {
		var round sync.WaitGroup
		for _, p := range pairs {
			round.Go(func() {
				for _, d := range [][2]int{{good[p[0]], good[p[1]]}, {good[p[1]], good[p[0]]}} {
					if a, ok := reached[d]; ok {
						if rate := x.rate(ctx, d[0], d[1], a); rate > 0 {
							mu.Lock()
							s.Rates = append(s.Rates, Rate{From: d[1], To: d[0], BytesPerS: rate})
							mu.Unlock()
						}
					}
				}
			})
		}
		round.Wait()
	}
	slices.SortFunc(s.Rates, func(a, b Rate) int {
		if a.From != b.From {
			return a.From - b.From
		}
		return a.To - b.To
	})
}

// rate lets host to receive data from host from.
func (x *examination) rate(ctx context.Context, to, from int, a netip.Addr) float64 {
	got, err := x.callers[to].call(ctx, 2*sendMost+dialFor+talkFor, &request{Do: "rate", Peer: from, Addr: a, Millis: rateMillis})
	if err != nil {
		return 0
	}
	return got.Rate
}

// measureAgain measures what seems slow a second time, alone: other work of a moment is no
// finding.
func (x *examination) measureAgain(ctx context.Context) {
	const most = 32
	s := x.survey
	for n, i := range slowRates(s) {
		if n == most {
			break
		}
		r := &s.Rates[i]
		for _, l := range s.Links {
			if l.From == r.To && l.To == r.From && l.Kind == OK {
				for range 3 {
					r.BytesPerS = max(r.BytesPerS, x.rate(ctx, r.To, r.From, l.Addr))
				}
			}
		}
	}
	for n, i := range slowHosts(s) {
		if n == most {
			break
		}
		if a, err := x.callers[i].call(ctx, factsFor, &request{Do: "measure"}); err == nil && a.Rates != nil && a.Rates.GFlopPerSec > s.Hosts[i].Facts.Rates.GFlopPerSec {
			s.Hosts[i].Facts.Rates = a.Rates
		}
	}
}

// shareFile lets one host make a file in the directory, and the others look for it.
func (x *examination) shareFile(ctx context.Context) {
	s := x.survey
	good := s.good()
	if len(good) < 2 {
		return
	}
	name := ".cohort-doctor-" + x.cookies[good[0]]
	s.Dir, s.Maker = x.Options.Dir, good[0]
	if _, err := x.callers[s.Maker].call(ctx, factsFor, &request{Do: "make", Name: name}); err != nil {
		s.Dir = "" // the check of its disk says why
		return
	}
	var mu sync.Mutex
	x.each(func(i int) error {
		a, err := x.callers[i].call(ctx, factsFor, &request{Do: "see", Name: name})
		if err == nil && !a.Seen {
			mu.Lock()
			s.Unseen = append(s.Unseen, i)
			mu.Unlock()
		}
		return err
	})
	slices.Sort(s.Unseen)
	_, _ = x.callers[s.Maker].call(ctx, factsFor, &request{Do: "remove", Name: name})
}
