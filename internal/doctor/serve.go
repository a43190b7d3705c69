// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/cohort-ml/cohort/internal/devices"
)

// protocol is the version of what is said over the pipe.
const protocol = 1

// maxMessage bounds a line of the pipe, in bytes.
const maxMessage = 8 << 20

// hello is the first line of a host.
type hello struct {
	Protocol int    `json:"cohort_doctor"`
	Version  string `json:"version"`
}

// request is a line to a host.
type request struct {
	Do      string     `json:"do"`
	Options *Options   `json:"options,omitempty"`
	Cookie  string     `json:"cookie,omitempty"`
	Peers   []Peer     `json:"peers,omitempty"`
	Large   []int      `json:"large,omitempty"` // peers to which large messages are sent
	Peer    int        `json:"peer,omitempty"`
	Addr    netip.Addr `json:"addr,omitzero"`
	Millis  int        `json:"millis,omitempty"`
	Name    string     `json:"name,omitempty"` // of a file
}

// answer is a line of a host.
type answer struct {
	Error   string         `json:"error,omitempty"`
	Facts   *Facts         `json:"facts,omitempty"`
	Time    int64          `json:"time,omitempty"` // nanoseconds since 1970
	Port    int            `json:"port,omitempty"`
	Reached []Reached      `json:"reached,omitempty"`
	Rate    float64        `json:"rate,omitempty"`
	Seen    bool           `json:"seen,omitempty"`
	Rates   *devices.Rates `json:"rates,omitempty"`
}

// Host is what answers for a host. The zero value but for Version is this host.
type Host struct {
	Version string                                           // of this program
	Collect func(ctx context.Context, o Options) *Facts      // nil for the function of that name
	Network Network                                          // nil for [System]
	Now     func() time.Time                                 // nil for the system's clock
	Measure func(ctx context.Context) (devices.Rates, error) // nil for one thread a processor
}

// server is a host that answers.
type server struct {
	Host
	self  *Facts
	peers map[int]*Peer
	links *links
}

// readLine reads a line of at most maxMessage bytes.
func readLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		if len(line)+len(part) > maxMessage {
			return nil, fmt.Errorf("doctor: a line of more than %d bytes", maxMessage)
		}
		line = append(line, part...)
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, err
		}
	}
}

// Serve answers requests until the input ends, or one says so.
func (h Host) Serve(ctx context.Context, in io.Reader, out io.Writer) error {
	if h.Collect == nil {
		h.Collect = Collect
	}
	if h.Network == nil {
		h.Network = System{}
	}
	if h.Now == nil {
		h.Now = time.Now
	}
	s := &server{Host: h, self: &Facts{}}
	defer func() {
		if s.links != nil {
			s.links.close()
		}
	}()
	enc := json.NewEncoder(out)
	if err := enc.Encode(hello{protocol, h.Version}); err != nil {
		return err
	}
	r := bufio.NewReaderSize(in, 64<<10)
	for {
		line, err := readLine(r)
		if errors.Is(err, io.EOF) && len(bytes.TrimSpace(line)) == 0 {
			return nil
		}
		if err != nil {
			return err
		}
		var q request
		if err := json.Unmarshal(line, &q); err != nil {
			return fmt.Errorf("doctor: a request that is none: %w", err)
		}
		if q.Do == "end" {
			return nil
		}
		a, err := s.do(ctx, &q)
		if err != nil {
			a = answer{Error: err.Error()}
		}
		if err := enc.Encode(a); err != nil {
			return err
		}
	}
}

func (s *server) do(ctx context.Context, q *request) (a answer, err error) {
	switch q.Do {
	case "facts":
		if q.Options == nil {
			return a, errors.New("a request for facts without options")
		}
		s.self = s.Collect(ctx, *q.Options)
		a.Facts = s.self
	case "time":
		a.Time = s.Now().UnixNano()
	case "listen":
		if s.links != nil || len(q.Cookie) != cookieLen {
			return a, errors.New("a second request to listen, or one without a cookie")
		}
		l, err := s.Network.Listen()
		if err != nil {
			return a, err
		}
		at, err := netip.ParseAddrPort(l.Addr().String())
		if err != nil {
			l.Close()
			return a, err
		}
		s.links, a.Port = serveLinks(l, q.Cookie), int(at.Port())
	case "reach":
		s.peers = map[int]*Peer{}
		for i := range q.Peers {
			s.peers[q.Peers[i].Index] = &q.Peers[i]
		}
		large := map[int]bool{}
		for _, i := range q.Large {
			large[i] = true
		}
		a.Reached = reachAll(ctx, s.Network, s.self, q.Peers, large)
	case "rate":
		p := s.peers[q.Peer]
		if p == nil {
			return a, fmt.Errorf("no peer %d", q.Peer)
		}
		a.Rate, err = download(ctx, s.Network, p, q.Addr, q.Millis)
	case "measure":
		var r devices.Rates
		if s.Measure != nil {
			r, err = s.Measure(ctx)
		} else {
			r, err = devices.Measure(ctx, max(1, int(usable(s.self.Print))), measureFor)
		}
		a.Rates = &r
	case "make", "see", "remove":
		return s.file(q)
	default:
		err = fmt.Errorf("a request %q that this version does not know", q.Do)
	}
	return a, err
}

// file makes, sees or removes a file with a name of cohort doctor in the directory of the
// options.
func (s *server) file(q *request) (a answer, err error) {
	if ok, _ := filepath.Match(".cohort-doctor-*", q.Name); !ok || s.self.Options.Dir == "" {
		return a, fmt.Errorf("no name of a trial file: %q", q.Name)
	}
	path := filepath.Join(s.self.Options.Dir, q.Name)
	switch q.Do {
	case "make":
		f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return a, err
		}
		return a, f.Close()
	case "remove":
		return a, os.Remove(path)
	}
	_, err = os.Lstat(path)
	a.Seen = err == nil
	return a, nil
}
