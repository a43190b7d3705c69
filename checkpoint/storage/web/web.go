// SPDX-License-Identifier: Apache-2.0

// Package web reads checkpoints from web servers, by HTTP ranges. It writes nothing.
//
// [Open] takes the address of a folder, https://HOST/PATH. A file of it is HOST/PATH/NAME.
// A read asks for just its range, so a rank loads only the bytes that it needs. A server
// that answers with the whole file in place of a range is refused by name: python's
// http.server is one, nginx, Apache, Caddy and the stores of objects are not.
//
// A web server has no lists. So a checkpoint is named by its step: an address of the run
// and "step-00000008", or the address of the checkpoint itself. List returns an error
// that wraps [errors.ErrUnsupported].
//
// Requests are repeated after network errors, answers of 5xx and 429 and bodies that end
// early. Each attempt has a deadline by its size. A file that changes while it is open
// (another ETag, date or size) is an error. Redirects are followed. A proxy is taken from
// HTTPS_PROXY as usual. There are no credentials: addresses that have some are refused,
// but a query stays, such as that of a signed address.
//
// Caveats. Numbers of bytes are those that the server says. A Site may be used by several
// goroutines. The zero value is not usable.
package web

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/cohort-ml/cohort/checkpoint/storage"
)

// Site is a [storage.Storage] that reads what a web server has in a folder.
type Site struct {
	address     string // for messages: without the query
	base        *url.URL
	client      *http.Client
	numAttempts int
	pause       time.Duration // before the second attempt; it doubles
}

var _ storage.Storage = (*Site)(nil)

// Open returns the storage at an address. It sends nothing.
func Open(address string) (*Site, error) {
	base, err := url.Parse(address)
	if err != nil {
		return nil, errors.New("storage: an address on the web must be http://HOST/PATH or https://HOST/PATH, and this one cannot be read")
	}
	if base.User != nil {
		return nil, errors.New("storage: an address on the web has no credentials: give one that can be read without, such as a signed one")
	}
	shown := *base
	shown.RawQuery, shown.Fragment, shown.RawFragment = "", "", ""
	if base.Scheme != "http" && base.Scheme != "https" || base.Host == "" || base.Fragment != "" {
		return nil, fmt.Errorf("storage: %s: an address on the web must be http://HOST/PATH or https://HOST/PATH", shown.String())
	}
	return &Site{
		address: strings.TrimSuffix(shown.String(), "/"), base: base, numAttempts: 8, pause: 50 * time.Millisecond,
		client: &http.Client{Transport: &http.Transport{
			Proxy:                 http.ProxyFromEnvironment,
			DialContext:           (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
			TLSHandshakeTimeout:   10 * time.Second,
			ResponseHeaderTimeout: time.Minute,
			IdleConnTimeout:       time.Minute,
			MaxIdleConnsPerHost:   64,
			ReadBufferSize:        256 << 10,
			ForceAttemptHTTP2:     true,
			DisableCompression:    true, // ranges are those of the file
		}},
	}, nil
}

func (s *Site) String() string { return s.address }

// no is the error of what a web server cannot do.
func (s *Site) no(what, instead string) error {
	return fmt.Errorf("storage: %s is on the web, where nothing can be %s: %s: %w", s.address, what, instead, errors.ErrUnsupported)
}

const elsewhere = "save to a directory or to s3://"

// List is not possible, see the package's documentation.
func (s *Site) List(context.Context, string) ([]storage.Entry, error) {
	return nil, s.no("listed", "name the step, such as "+s.address+"/step-00000008")
}

// Stage is as in [storage.Storage]; nothing can be written there.
func (s *Site) Stage(name, id string) (stage, folder string) { return name + ".tmp-" + id, "" }

// Create is not possible.
func (s *Site) Create(context.Context, string) (storage.File, error) {
	return nil, s.no("written", elsewhere)
}

// Link is not possible.
func (s *Site) Link(context.Context, string, string) error { return s.no("written", elsewhere) }

// Commit is not possible.
func (s *Site) Commit(context.Context, string, string, []byte) error {
	return s.no("written", elsewhere)
}

// Replace is not possible.
func (s *Site) Replace(context.Context, string, string, []byte) error {
	return s.no("written", elsewhere)
}

// Remove is not possible.
func (s *Site) Remove(context.Context, string) error { return s.no("removed", elsewhere) }

// SetAside is not possible.
func (s *Site) SetAside(context.Context, string) error { return s.no("renamed", elsewhere) }

// Free is as in [storage.Storage]: not known.
func (s *Site) Free(context.Context) (bytes int64, known bool, err error) { return 0, false, nil }

// Lock is as in [storage.Storage]: there are no locks.
func (s *Site) Lock(context.Context) (release func(), held bool, err error) {
	return func() {}, false, nil
}

// Open is as in [storage.Storage]. It asks for the first byte, and so learns whether
// the server gives ranges, and the size.
func (s *Site) Open(ctx context.Context, name string) (storage.Object, error) {
	if err := storage.CheckName(name); err != nil {
		return nil, err
	}
	if err := context.Cause(ctx); err != nil {
		return nil, fmt.Errorf("storage: %s/%s: %w", s.address, name, err)
	}
	parts := strings.Split(name, "/")
	for i := range parts {
		parts[i] = url.PathEscape(parts[i])
	}
	u := s.base.JoinPath(parts...)
	o := &object{site: s, ctx: ctx, name: s.address + "/" + name, url: u.String()}
	var first [1]byte
	err := o.retry(func(ctx context.Context) error {
		version, size, err := o.read(ctx, first[:], 0)
		o.version, o.size = version, size
		return err
	}, 0)
	if err != nil {
		return nil, err
	}
	return o, nil
}

// object is a file that is open for reading.
type object struct {
	site    *Site
	ctx     context.Context // of Open: reads end with it
	name    string          // for messages
	url     string
	size    int64
	version string // what changes with the file
}

func (o *object) Size() int64  { return o.size }
func (o *object) Close() error { return nil }

// ReadAt is as in [io.ReaderAt].
func (o *object) ReadAt(p []byte, at int64) (n int, err error) {
	if at < 0 {
		return 0, fmt.Errorf("storage: reading %s at byte %d", o.name, at)
	}
	want := p[:max(0, min(int64(len(p)), o.size-at))]
	if len(want) > 0 {
		err := o.retry(func(ctx context.Context) error {
			version, size, err := o.read(ctx, want, at)
			if err == nil && (version != o.version || size != o.size) {
				return &statusError{status: http.StatusOK, text: "it was changed while it was read"}
			}
			return err
		}, int64(len(want)))
		if err != nil {
			return 0, err
		}
	}
	if len(want) < len(p) {
		return len(want), io.EOF
	}
	return len(want), nil
}

// read asks for a range once, and returns what identifies the file's version, and
// its size. p is not empty; an empty file gives no bytes.
func (o *object) read(ctx context.Context, p []byte, at int64) (version string, size int64, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, o.url, nil)
	if err != nil {
		return "", 0, err
	}
	req.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", at, at+int64(len(p))-1))
	req.Header.Set("Accept-Encoding", "identity")
	resp, err := o.site.client.Do(req)
	if err != nil {
		return "", 0, err
	}
	defer resp.Body.Close()
	h := resp.Header
	version = h.Get("ETag") + " " + h.Get("Last-Modified")
	switch resp.StatusCode {
	case http.StatusPartialContent:
	case http.StatusRequestedRangeNotSatisfiable:
		if size, err := strconv.ParseInt(strings.TrimPrefix(h.Get("Content-Range"), "bytes */"), 10, 64); err == nil && size == 0 && at == 0 {
			return version, 0, nil
		}
		return "", 0, &statusError{resp.StatusCode, "it is shorter than it was"}
	case http.StatusOK:
		if resp.ContentLength == 0 {
			return version, 0, nil // nothing of an empty file is all of it
		}
		server := h.Get("Server")
		if server == "" {
			server = "which does not say what it is"
		}
		return "", 0, &statusError{resp.StatusCode, fmt.Sprintf("the server %s (%s) gives whole files and no ranges, so checkpoints cannot be read from it: use a server that gives ranges, such as nginx, or copy the files", resp.Request.URL.Host, server)}
	default:
		return "", 0, &statusError{resp.StatusCode, ""}
	}
	if enc := h.Get("Content-Encoding"); enc != "" && enc != "identity" {
		return "", 0, &statusError{http.StatusOK, fmt.Sprintf("the server %s sends it in the encoding %q, which was not asked for", resp.Request.URL.Host, enc)}
	}
	first, last, size, err := parseContentRange(h.Get("Content-Range"))
	if err != nil || first != at || last != min(at+int64(len(p)), size)-1 {
		return "", 0, &statusError{http.StatusOK, fmt.Sprintf("the server %s was asked for bytes %d to %d and sends %q", resp.Request.URL.Host, at, at+int64(len(p))-1, h.Get("Content-Range"))}
	}
	if _, err := io.ReadFull(resp.Body, p[:last-first+1]); err != nil {
		return "", 0, fmt.Errorf("the answer ends early: %w", err)
	}
	return version, size, nil
}

// parseContentRange reads "bytes FIRST-LAST/SIZE".
func parseContentRange(s string) (first, last, size int64, err error) {
	span, total, ok := strings.Cut(strings.TrimPrefix(s, "bytes "), "/")
	from, to, ok2 := strings.Cut(span, "-")
	if !ok || !ok2 || !strings.HasPrefix(s, "bytes ") {
		return 0, 0, 0, strconv.ErrSyntax
	}
	for _, part := range []struct {
		text string
		to   *int64
	}{{from, &first}, {to, &last}, {total, &size}} {
		n, err := strconv.ParseUint(part.text, 10, 63)
		if err != nil {
			return 0, 0, 0, err
		}
		*part.to = int64(n)
	}
	if first > last || last >= size {
		return 0, 0, 0, strconv.ErrRange
	}
	return first, last, size, nil
}

// statusError is an answer that is not the range.
type statusError struct {
	status int
	text   string
}

func (e *statusError) Error() string {
	if e.text != "" {
		return e.text
	}
	return fmt.Sprintf("the server answers %d %s", e.status, http.StatusText(e.status))
}

// Unwrap says what the answer means.
func (e *statusError) Unwrap() error {
	switch e.status {
	case http.StatusNotFound, http.StatusGone:
		return fs.ErrNotExist
	case http.StatusUnauthorized, http.StatusForbidden:
		return fs.ErrPermission
	}
	return nil
}

// retry does a request until it succeeds, as often as is worth it.
func (o *object) retry(request func(ctx context.Context) error, bytes int64) error {
	const slowest = 256 << 10 // bytes a second
	pause := o.site.pause
	for attempt := 1; ; attempt++ {
		ctx, cancel := context.WithTimeout(o.ctx, 30*time.Second+time.Duration(bytes/slowest)*time.Second)
		err := request(ctx)
		cancel()
		var status *statusError
		passing := !errors.As(err, &status) || status.status >= 500 || status.status == http.StatusTooManyRequests || status.status == http.StatusRequestTimeout
		switch {
		case err == nil:
			return nil
		case o.ctx.Err() != nil:
			return fmt.Errorf("storage: reading %s: %w", o.name, context.Cause(o.ctx))
		case !passing || attempt == o.site.numAttempts:
			// The error of the client has the address with its query.
			if e := (*url.Error)(nil); errors.As(err, &e) {
				err = e.Err
			}
			err = fmt.Errorf("storage: reading %s: %w", o.name, err)
			if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) {
				err = &storage.ServerError{Err: err}
			}
			return err
		}
		t := time.NewTimer(pause/2 + rand.N(pause))
		select {
		case <-t.C:
		case <-o.ctx.Done():
			t.Stop()
		}
		pause = min(2*pause, 4*time.Second)
	}
}
