// SPDX-License-Identifier: Apache-2.0

package web

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/internal/seeded"
)

// serve starts a server and returns the site of it.
func serve(t *testing.T, h http.Handler) *Site {
	t.Helper()
	front := httptest.NewServer(h)
	t.Cleanup(front.Close)
	s, err := Open(front.URL + "/runs/one/")
	if err != nil {
		t.Fatal(err)
	}
	s.pause = time.Millisecond
	t.Cleanup(s.client.CloseIdleConnections)
	return s
}

// folder makes a folder with files, and returns its path and the bytes of the large one.
func folder(t *testing.T) (string, []byte) {
	t.Helper()
	dir := t.TempDir()
	large := make([]byte, 3<<20+5)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range large {
		large[i] = byte(r.Uint32())
	}
	d := storage.Dir(dir, storage.WithoutSync())
	for name, data := range map[string][]byte{"step-1/large": large, "step-1/empty": nil, "step-1/a b+c%20#?&ü": []byte("odd")} {
		if err := storage.WriteFile(t.Context(), d, name, data); err != nil {
			t.Fatal(err)
		}
	}
	return dir, large
}

// TestRead: files are read as they are in a directory, whatever a tenth of the
// requests meets.
func TestRead(t *testing.T) {
	seed := seeded.Of(t)
	dir, large := folder(t)
	files := http.StripPrefix("/runs/one/", http.FileServer(http.Dir(dir)))
	for _, rate := range []float64{0, 0.3} {
		var mu sync.Mutex
		r := rand.New(rand.NewPCG(seed, 1))
		var sent atomic.Int64
		s := serve(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			mu.Lock()
			fault, kind := r.Float64() < rate, r.IntN(4)
			mu.Unlock()
			if !fault {
				files.ServeHTTP(&counter{w, &sent}, req)
				return
			}
			switch kind {
			case 0:
				http.Error(w, "busy", http.StatusServiceUnavailable)
			case 1:
				http.Error(w, "slow down", http.StatusTooManyRequests)
			case 2: // half of the answer
				rec := httptest.NewRecorder()
				files.ServeHTTP(rec, req)
				for k, v := range rec.Header() {
					w.Header()[k] = v
				}
				w.WriteHeader(rec.Code)
				w.Write(rec.Body.Bytes()[:rec.Body.Len()/2])
				panic(http.ErrAbortHandler)
			default:
				panic(http.ErrAbortHandler)
			}
		}))
		s.numAttempts = 20
		checkFile(t, s, "step-1/large", large)
		checkFile(t, s, "step-1/empty", nil)
		checkFile(t, s, "step-1/a b+c%20#?&ü", []byte("odd"))
		before := sent.Load()
		o, err := s.Open(t.Context(), "step-1/large")
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				b := make([]byte, 1000)
				at := int64(i * 700_000)
				if n, err := o.ReadAt(b, at); n != 1000 || err != nil || !bytes.Equal(b, large[at:at+1000]) {
					t.Errorf("reading at %d: %d, %v", at, n, err)
				}
			})
		}
		wg.Wait()
		if got := sent.Load() - before; got > 5000 {
			t.Errorf("%d bytes were sent for 4,000", got)
		}
		b := make([]byte, 10)
		if n, err := o.ReadAt(b, o.Size()-3); n != 3 || !errors.Is(err, io.EOF) {
			t.Errorf("across the end: %d, %v", n, err)
		}
		if n, err := o.ReadAt(b, o.Size()+3); n != 0 || !errors.Is(err, io.EOF) {
			t.Errorf("after the end: %d, %v", n, err)
		}
	}
}

type counter struct {
	http.ResponseWriter
	n *atomic.Int64
}

func (c *counter) Write(b []byte) (int, error) {
	c.n.Add(int64(len(b)))
	return c.ResponseWriter.Write(b)
}

func checkFile(t *testing.T, s storage.Storage, name string, want []byte) {
	t.Helper()
	got, err := storage.ReadFile(t.Context(), s, name, 1<<30)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s: %d bytes, not the %d written; %v", name, len(got), len(want), err)
	}
}

// TestRefused: servers that cannot serve checkpoints are refused in words.
func TestRefused(t *testing.T) {
	for _, tc := range []struct {
		name    string
		handler http.HandlerFunc
		want    string
		is      error
	}{
		{"no ranges", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Server", "SimpleHTTP/0.6")
			io.WriteString(w, "all of it")
		}, "(SimpleHTTP/0.6) gives whole files and no ranges", nil},
		{"missing", http.NotFound, "answers 404 Not Found", fs.ErrNotExist},
		{"forbidden", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "", http.StatusForbidden) }, "answers 403", fs.ErrPermission},
		{"another range", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Range", "bytes 5-5/100")
			w.WriteHeader(http.StatusPartialContent)
			io.WriteString(w, "x")
		}, `was asked for bytes 0 to 0 and sends "bytes 5-5/100"`, nil},
		{"no size", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Range", "bytes 0-0/*")
			w.WriteHeader(http.StatusPartialContent)
			io.WriteString(w, "x")
		}, `sends "bytes 0-0/*"`, nil},
		{"compressed", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Range", "bytes 0-0/100")
			w.Header().Set("Content-Encoding", "gzip")
			w.WriteHeader(http.StatusPartialContent)
			io.WriteString(w, "x")
		}, `the encoding "gzip"`, nil},
		{"always busy", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "", http.StatusServiceUnavailable) }, "answers 503", nil},
	} {
		s := serve(t, tc.handler)
		_, err := s.Open(t.Context(), "step-1/file")
		if err == nil || !strings.Contains(err.Error(), tc.want) || tc.is != nil && !errors.Is(err, tc.is) || !strings.Contains(err.Error(), "/runs/one/step-1/file") {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
	s := serve(t, http.NotFoundHandler())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Open(ctx, "file"); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end of the context: %v", err)
	}
	for _, name := range []string{"", "..", "../a", "/a", "a//b"} {
		if _, err := s.Open(t.Context(), name); !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("%q: %v", name, err)
		}
	}
	_, lerr := s.List(t.Context(), "")
	_, cerr := s.Create(t.Context(), "a")
	for what, err := range map[string]error{"List": lerr, "Create": cerr, "Link": s.Link(t.Context(), "a", "b"), "Commit": s.Commit(t.Context(), "a", "b", nil), "Remove": s.Remove(t.Context(), "a"), "SetAside": s.SetAside(t.Context(), "a")} {
		if !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestChanged: a file that is replaced while it is open is an error, not a mixture.
func TestChanged(t *testing.T) {
	dir, _ := folder(t)
	path := filepath.Join(dir, "step-1", "large")
	s := serve(t, http.StripPrefix("/runs/one/", http.FileServer(http.Dir(dir))))
	for _, other := range []int{3<<20 + 5, 100} {
		o, err := s.Open(t.Context(), "step-1/large")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, make([]byte, other), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, time.Time{}, time.Unix(int64(other), 0)); err != nil {
			t.Fatal(err)
		}
		if _, err := o.ReadAt(make([]byte, 100), 50); err == nil || !strings.Contains(err.Error(), "changed while it was read") {
			t.Errorf("%d bytes: %v", other, err)
		}
	}
}

// TestAddresses: an address with a secret is refused without showing it, and the
// query of a signed one stays out of errors.
func TestAddresses(t *testing.T) {
	for _, address := range []string{"https://user:SECRET@host/x", "ftp://host/x", "https:///x", "host/x", "https://host/x#SECRET", "https://ho st/?SECRET", "http://[::1/SECRET"} {
		if _, err := Open(address); err == nil || strings.Contains(err.Error(), "SECRET") {
			t.Errorf("%s: %v", address, err)
		}
	}
	asked := ""
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		asked = req.URL.String()
		http.NotFound(w, req)
	}))
	s, err := Open(front.URL + "/x?signature=SECRET")
	if err != nil {
		t.Fatal(err)
	}
	s.pause = time.Millisecond
	_, err = s.Open(t.Context(), "a/b")
	if asked != "/x/a/b?signature=SECRET" || err == nil || strings.Contains(err.Error(), "SECRET") || strings.Contains(s.String(), "SECRET") {
		t.Errorf("%q was asked for; %v", asked, err)
	}
	front.Close()
	if _, err = s.Open(t.Context(), "a/b"); err == nil || strings.Contains(err.Error(), "SECRET") {
		t.Error(err)
	}
}

func FuzzContentRange(f *testing.F) {
	for _, s := range []string{"bytes 0-0/1", "bytes 5-9/*", "bytes */0", "bytes 9-5/10", "bytes 0-18446744073709551615/1", "", "bytes -1-1/2"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		first, last, size, err := parseContentRange(s)
		if err == nil && (first < 0 || first > last || last >= size) {
			t.Errorf("%q gives %d-%d/%d", s, first, last, size)
		}
		if err == nil {
			if f2, l2, s2, err := parseContentRange(fmt.Sprintf("bytes %d-%d/%d", first, last, size)); err != nil || f2 != first || l2 != last || s2 != size {
				t.Errorf("%q is not read back", s)
			}
		}
	})
}
