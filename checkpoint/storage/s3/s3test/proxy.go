// SPDX-License-Identifier: Apache-2.0

package s3test

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// Faults says what a [Proxy] does to requests.
type Faults struct {
	// Rate is the share of requests that a fault meets, 0 to 1.
	Rate float64
	// Delay is the longest time for which a request is held back; requests overtake
	// each other so.
	Delay time.Duration
	// Late: some requests are delivered once more, or only, after their sender has
	// gone on. What was removed may come back so.
	Late bool
	// IgnoreConditions makes the server one that accepts conditional puts and does
	// not look at the condition.
	IgnoreConditions bool
}

// The kinds of faults.
const (
	faultRefused = "connection closed before the request"
	faultBusy    = "503 in place of the request"
	faultLost    = "answer lost"
	faultError   = "500 in place of the answer"
	faultCut     = "answer cut"
	faultLate    = "connection closed, request delivered later"
	faultTwice   = "request delivered once more later"
)

// faultKinds are all kinds, those of Late last.
var faultKinds = []string{faultRefused, faultBusy, faultLost, faultError, faultCut, faultLate, faultTwice}

// Proxy stands before a server.
type Proxy struct {
	Server // as clients see it

	target string
	faults Faults
	client http.Client
	late   sync.WaitGroup

	mu    sync.Mutex
	r     *rand.Rand
	numOK int
	done  map[string]int
}

// NewProxy starts a proxy before a server.
func NewProxy(t testing.TB, s *Server, seed uint64, faults Faults) *Proxy {
	p := &Proxy{target: s.URL, faults: faults, r: rand.New(rand.NewPCG(seed, 3)), done: map[string]int{}}
	p.client.Transport = &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true}
	front := httptest.NewServer(p)
	p.Server = Server{Name: s.Name + " behind a proxy", URL: front.URL}
	t.Cleanup(func() {
		front.Close()
		p.Settle()
		p.client.CloseIdleConnections()
	})
	return p
}

// Settle waits until no request is on its way that its sender has given up.
func (p *Proxy) Settle() { p.late.Wait() }

// String says what the proxy has done.
func (p *Proxy) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := []string{fmt.Sprintf("%d requests undisturbed", p.numOK)}
	for _, kind := range slices.Sorted(maps.Keys(p.done)) {
		all = append(all, fmt.Sprintf("%d: %s", p.done[kind], kind))
	}
	return strings.Join(all, "; ")
}

// draw decides what happens to a request.
func (p *Proxy) draw() (fault string, delay, later time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.faults.Delay > 0 {
		delay = time.Duration(p.r.Int64N(int64(p.faults.Delay)))
		later = time.Duration(p.r.Int64N(int64(p.faults.Delay) * 4))
	}
	if p.r.Float64() >= p.faults.Rate {
		p.numOK++
		return "", delay, 0
	}
	kinds := faultKinds
	if !p.faults.Late {
		kinds = kinds[:len(kinds)-2]
	}
	fault = kinds[p.r.IntN(len(kinds))]
	p.done[fault]++
	return fault, delay, later
}

// forward sends a request to the server, and returns the answer with its body.
func (p *Proxy) forward(req *http.Request, body []byte) (*http.Response, []byte, error) {
	out, err := http.NewRequest(req.Method, p.target+req.URL.RequestURI(), bytes.NewReader(body))
	if err != nil {
		return nil, nil, err
	}
	out.Header = req.Header.Clone()
	out.Host = req.Host
	if len(body) == 0 {
		out.Body = http.NoBody
	}
	if p.faults.IgnoreConditions {
		out.Header.Del("If-None-Match")
		out.Header.Del("If-Match")
	}
	resp, err := p.client.Do(out)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	return resp, answer, err
}

// ServeHTTP is as in [http.Handler].
func (p *Proxy) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		panic(http.ErrAbortHandler) // the client has gone
	}
	fault, delay, later := p.draw()
	if delay > 0 {
		time.Sleep(delay)
	}
	switch fault {
	case faultRefused:
		panic(http.ErrAbortHandler)
	case faultBusy:
		http.Error(w, "<Error><Code>SlowDown</Code><Message>a fault</Message></Error>", http.StatusServiceUnavailable)
		return
	case faultLate, faultTwice:
		p.late.Add(1)
		time.AfterFunc(later, func() {
			defer p.late.Done()
			p.forward(req, body)
		})
		if fault == faultLate {
			panic(http.ErrAbortHandler)
		}
	}
	resp, answer, err := p.forward(req, body)
	switch {
	case err != nil, fault == faultLost:
		panic(http.ErrAbortHandler)
	case fault == faultError:
		http.Error(w, "<Error><Code>InternalError</Code><Message>a fault</Message></Error>", http.StatusInternalServerError)
		return
	}
	maps.Copy(w.Header(), resp.Header)
	if req.Method != http.MethodHead {
		w.Header().Set("Content-Length", fmt.Sprint(len(answer)))
	}
	w.WriteHeader(resp.StatusCode)
	if fault == faultCut {
		w.Write(answer[:len(answer)/2])
		panic(http.ErrAbortHandler)
	}
	w.Write(answer)
}
