// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/user"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-ml/cohort/dist/flightlog"
	"github.com/cohort-ml/cohort/internal/visible"
)

// Options say what a server shows.
type Options struct {
	// Addr is where the server listens: host:port, :port or port. Without a host, that is
	// 127.0.0.1. Port 0 takes a free one.
	Addr string
	// Token is what who asks must know; "" makes one.
	Token string
	// Title is the title of the page.
	Title string
	// Runs are directories of runs, which need not have a history yet.
	Runs []string
	// Settings reads the settings of a run's directory, nil if they are not known. May be nil.
	Settings func(dir string) (map[string]string, error)
	// Environment reads the fingerprint of a run's environment, nil if it is not known. May be nil.
	Environment func(dir string) (map[string]string, error)
	// Job is the job whose ranks the page shows; nil for runs alone.
	Job *Job
	// Metrics answers /metrics; nil for nothing there.
	Metrics http.Handler
	// Recorder asks the ranks for the dumps of their flight recorders; nil for nobody to ask.
	Recorder func(context.Context) *flightlog.Report
	// Tell tells a person once of each kind of trouble. May be nil.
	Tell func(text string)
}

// Server serves the page.
type Server struct {
	o        Options
	listener *limitedListener
	http     *http.Server
	runs     *runs
	requests *bucket
	bytes    *bucket
	slots    chan struct{}
	asked    atomic.Int64 // when a page last asked, in nanoseconds since 1970
	answered atomic.Int64 // how many updates were answered
	served   sync.WaitGroup

	mu      sync.Mutex
	refusal map[string]int // how often, by why
}

// Listen begins to serve.
func Listen(o Options) (*Server, error) {
	addr, err := address(o.Addr)
	if err != nil {
		return nil, fmt.Errorf("dashboard: %w", err)
	}
	if o.Token == "" {
		var b [16]byte
		_, _ = rand.Read(b[:]) // never fails
		o.Token = hex.EncodeToString(b[:])
	}
	if o.Tell == nil {
		o.Tell = func(string) {}
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("dashboard: %w: choose another address, or port 0 for a free one", err)
	}
	s := &Server{
		o: o, runs: newRuns(o.Runs, o.Settings, o.Environment), requests: newBucket(requestRate, 5*requestRate), bytes: newBucket(byteRate, byteBurst),
		slots: make(chan struct{}, maxRequests), refusal: map[string]int{},
	}
	s.listener = &limitedListener{
		Listener: l, slots: make(chan struct{}, maxConns), rate: newBucket(requestRate, 5*requestRate),
		refused: func() { s.refuse(fmt.Sprintf("more than %d connections at a time", maxConns)) }, closed: make(chan struct{}),
	}
	s.http = &http.Server{
		Handler: s.handler(), ReadHeaderTimeout: readPatience, ReadTimeout: readPatience, WriteTimeout: writePatience, IdleTimeout: idlePatience,
		MaxHeaderBytes: maxHeader, ErrorLog: log.New(nowhere{}, "", 0),
	}
	s.served.Go(func() { _ = s.http.Serve(s.listener) })
	return s, nil
}

type nowhere struct{}

func (nowhere) Write(b []byte) (int, error) { return len(b), nil }

// address completes the address of a user.
func address(text string) (string, error) {
	if _, err := strconv.ParseUint(text, 10, 16); err == nil {
		text = ":" + text
	}
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		return "", fmt.Errorf("address %q: give HOST:PORT, such as 127.0.0.1:0 for a free port", text)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil {
		return "", fmt.Errorf("address %q: %q is no port: give 0 to 65535, 0 for a free one", text, port)
	} else if port = strconv.FormatUint(n, 10); host == "" {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port), nil
}

// port returns where the server listens.
func (s *Server) at() *net.TCPAddr { return s.listener.Addr().(*net.TCPAddr) }

// URL returns the address of the page, with the token.
func (s *Server) URL() string {
	host := s.at().IP.String()
	if s.at().IP.IsUnspecified() {
		if name, err := os.Hostname(); err == nil {
			host = name
		}
	}
	u := url.URL{Scheme: "http", Host: net.JoinHostPort(host, strconv.Itoa(s.at().Port)), Path: "/", RawQuery: url.Values{"token": {s.o.Token}}.Encode()}
	return u.String()
}

// Announce returns what a person must know to open the page: its address, and how to reach it
// from another machine.
func (s *Server) Announce() []string {
	lines := []string{"the dashboard is at " + s.URL()}
	if s.at().IP.IsLoopback() {
		name, who := "HOST", ""
		if host, err := os.Hostname(); err == nil {
			name = host
		}
		if u, err := user.Current(); err == nil {
			who = u.Username + "@"
		}
		host, port := s.at().IP.String(), s.at().Port
		if s.at().IP.To4() == nil {
			host = "[" + host + "]"
		}
		lines = append(lines, fmt.Sprintf("from another machine first: ssh -N -L %d:%s:%d %s%s", port, host, port, who, name))
	} else {
		lines = append(lines, "other machines reach the dashboard; what it sends is not encrypted")
	}
	return lines
}

// lingers is how long Finish lets a page that is open see the end.
const lingers = 3 * time.Second

// Finish ends the server. If a page has asked in the last seconds, Finish waits until it has asked
// once more, for at most three seconds, so that the page shows the end of the job.
func (s *Server) Finish() {
	before := s.answered.Load()
	if recently := time.Since(time.Unix(0, s.asked.Load())) < lingers; recently {
		for end := time.Now().Add(lingers); s.answered.Load() == before && time.Now().Before(end); {
			time.Sleep(20 * time.Millisecond)
		}
	}
	s.Close()
}

// Close ends the server at once.
func (s *Server) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	if err := s.http.Shutdown(ctx); err != nil {
		_ = s.http.Close()
	}
	_ = s.listener.Close()
	s.served.Wait()
	s.runs.close()
	if text := s.refused(); text != "" {
		s.o.Tell("the dashboard refused " + text)
	}
}

// refuse counts a refusal, and tells of the first of its kind.
func (s *Server) refuse(why string) {
	s.mu.Lock()
	s.refusal[why]++
	first := s.refusal[why] == 1
	s.mu.Unlock()
	if first {
		s.o.Tell("the dashboard refused a request: " + why)
	}
}

// refused says what was refused, and how often.
func (s *Server) refused() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var parts []string
	for why, n := range s.refusal {
		if n > 1 {
			parts = append(parts, fmt.Sprintf("%d requests: %s", n, why))
		}
	}
	return strings.Join(parts, "; ")
}

// handler checks who asks, and how much, before anything is computed.
func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", s.page)
	mux.HandleFunc("GET /updates", s.updates)
	mux.HandleFunc("GET /log", s.log)
	if s.o.Recorder != nil {
		mux.HandleFunc("GET /recorder", s.recorder)
	}
	if s.o.Metrics != nil {
		mux.Handle("GET /metrics", s.o.Metrics)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Cache-Control", "no-store")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		fail := func(code int, why, text string) {
			s.refuse(why)
			http.Error(w, text, code)
		}
		if !s.knows(r) {
			fail(http.StatusForbidden, "a wrong token", "the token is missing or wrong: open the address that the job has printed")
			return
		}
		if !s.requests.take(1) {
			fail(http.StatusTooManyRequests, fmt.Sprintf("more than %d requests a second", requestRate), "too many requests")
			return
		}
		select {
		case s.slots <- struct{}{}:
			defer func() { <-s.slots }()
		default:
			fail(http.StatusServiceUnavailable, fmt.Sprintf("more than %d requests at a time", maxRequests), "too many requests at a time")
			return
		}
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			fail(http.StatusMethodNotAllowed, "a method other than GET", "the dashboard is for reading only")
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// knows reports whether a request has the token.
func (s *Server) knows(r *http.Request) bool {
	given := r.URL.Query().Get("token")
	if bearer, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok {
		given = bearer
	}
	return subtle.ConstantTimeCompare([]byte(given), []byte(s.o.Token)) == 1
}

// send writes an answer that is ready, within the bytes that are allowed.
func (s *Server) send(w http.ResponseWriter, kind string, text []byte) error {
	if !s.bytes.take(float64(len(text))) {
		s.refuse(fmt.Sprintf("more than %d MiB a second", byteRate>>20))
		http.Error(w, "too much is asked for", http.StatusTooManyRequests)
		return errors.New("too much")
	}
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	_, err := w.Write(text)
	return err
}

// plain cuts a text of others to a length, and makes its control characters visible.
func plain(text string, most int) string {
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + fmt.Sprintf("… (%d bytes)", len(text))
	}
	return visible.Text(strings.ToValidUTF8(text, "\ufffd"))
}
