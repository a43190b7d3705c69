// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/cohort-ml/cohort/internal/ctxerr"
)

// How long a client waits for one member before it asks another. A member itself gives
// a request up after 7 s.
const (
	connectTime = 2 * time.Second
	answerTime  = 8 * time.Second
	silenceTime = 3 * time.Second // of a machine that does not confirm what is sent to it
)

// Options say how a client reaches a cluster. The zero value is for one without passwords, and
// with certificates that the system trusts.
type Options struct {
	TLS            *tls.Config // of endpoints that begin with https://
	User, Password string
}

// Client speaks with a cluster through its JSON gateway, which each member of etcd 3.4 and later
// serves at the address for clients unless it was started with --enable-grpc-gateway=false.
// If a member does not answer, the client asks the next one. Any number of goroutines may use it.
type Client struct {
	endpoints []string // URLs
	options   Options
	http      *http.Client
	transport *http.Transport

	mu    sync.Mutex
	first int    // endpoint that is asked first
	token string // of the user
}

// NewClient returns a client of the cluster whose members are at endpoints, host:port or URLs.
// It sends nothing. Close ends its connections.
func NewClient(endpoints []string, o Options) (*Client, error) {
	c := &Client{options: o}
	for _, text := range endpoints {
		at := text
		if !strings.Contains(at, "://") {
			at = "http://" + at
		}
		u, err := url.Parse(at)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" {
			return nil, errors.New("etcd: an endpoint is HOST:PORT, http://HOST:PORT or https://HOST:PORT, and one of those given is not: a user is given by Options")
		}
		c.endpoints = append(c.endpoints, u.Scheme+"://"+u.Host)
	}
	if len(c.endpoints) == 0 {
		return nil, errors.New("etcd: give the endpoints of one or more members")
	}
	if o.User == "" && o.Password != "" {
		return nil, errors.New("etcd: there is a password, and no user")
	}
	dialer := &net.Dialer{
		Timeout: connectTime, Control: endAfterSilence,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 2 * time.Second, Interval: time.Second, Count: 2},
	}
	c.transport = &http.Transport{
		DialContext: dialer.DialContext, TLSClientConfig: o.TLS.Clone(), TLSHandshakeTimeout: answerTime,
		ResponseHeaderTimeout: answerTime, IdleConnTimeout: time.Minute, MaxIdleConnsPerHost: 16, DisableCompression: true,
		Proxy: func(r *http.Request) (*url.URL, error) {
			if r.URL.Scheme == "http" { // a proxy for strangers would be asked for members nearby
				return nil, nil
			}
			return http.ProxyFromEnvironment(r)
		},
	}
	c.http = &http.Client{Transport: c.transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return c, nil
}

// Close ends the connections that nobody uses.
func (c *Client) Close() { c.transport.CloseIdleConnections() }

// String returns the endpoints.
func (c *Client) String() string { return strings.Join(c.endpoints, ",") }

// call makes a request to whichever member answers, and reads the answer. A request that changes
// something is repeated only if it was not sent.
func (c *Client) call(ctx context.Context, path string, in, out any, repeatable bool) error {
	return c.ask(ctx, path, in, repeatable, func(body io.Reader) error {
		text, err := io.ReadAll(io.LimitReader(body, maxReply+1))
		if err != nil {
			return err
		}
		if len(text) > maxReply {
			return errTooLong
		}
		if err := json.Unmarshal(text, out); err != nil {
			return &strangeError{http.StatusOK, shown(text)}
		}
		return nil
	})
}

// ask makes a request to one member after the other until one does it, and lets read read the answer.
func (c *Client) ask(ctx context.Context, path string, in any, repeatable bool, read func(io.Reader) error) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	pause := 10 * time.Millisecond
	for {
		var final error // no repetition helps
		for range c.endpoints {
			c.mu.Lock()
			at := c.first
			c.mu.Unlock()
			err = c.asUser(ctx, c.endpoints[at], path, body, read)
			if err == nil || ctx.Err() != nil {
				return c.named(at, err)
			}
			var s *Status
			switch sent := !isUnsent(err); {
			case isFinal(err):
				final = c.named(at, err)
			case errors.As(err, &s) && s.Code != codeUnavailable, errors.Is(err, errTooLong):
				return err
			case sent && !repeatable:
				c.pass(at)
				return c.named(at, err)
			}
			c.pass(at)
			err = c.named(at, err)
		}
		if final != nil {
			return final
		}
		if !sleep(ctx, pause) {
			return err
		}
		pause = min(2*pause, 500*time.Millisecond)
	}
}

// named adds which member an error is of.
func (c *Client) named(at int, err error) error {
	var strange *strangeError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &strange):
		return fmt.Errorf("%s %w", c.endpoints[at], err)
	case errors.Is(err, io.EOF) && strings.HasPrefix(c.endpoints[at], "http://"):
		return fmt.Errorf("%s: the member ended the connection (give https://HOST:PORT if it speaks TLS): %w", c.endpoints[at], err)
	case c.anonymous() && strings.Contains(err.Error(), "remote error: tls: ") && strings.Contains(err.Error(), "certificate"):
		return fmt.Errorf("%s: the member wants a certificate of its clients: %w", c.endpoints[at], err)
	}
	return fmt.Errorf("%s: %w", c.endpoints[at], err)
}

// anonymous reports whether the client has no certificate of its own. Members that want one say
// that it is required, or (older ones) that it is bad.
func (c *Client) anonymous() bool {
	t := c.options.TLS
	return t == nil || len(t.Certificates) == 0 && t.GetClientCertificate == nil
}

// pass makes the member after at the first that is asked.
func (c *Client) pass(at int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.first == at {
		c.first = (at + 1) % len(c.endpoints)
	}
}

// sleep waits, and reports whether ctx still holds.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// asUser makes a request to a member, with the token of the user.
func (c *Client) asUser(ctx context.Context, endpoint, path string, body []byte, read func(io.Reader) error) error {
	if c.options.User == "" {
		return c.try(ctx, endpoint, path, "", body, read)
	}
	c.mu.Lock()
	token := c.token
	c.mu.Unlock()
	if token != "" {
		err := c.try(ctx, endpoint, path, token, body, read)
		var s *Status
		if !errors.As(err, &s) || s.Code != codeUnauthenticated {
			return err
		}
	}
	token, err := c.authenticate(ctx, endpoint)
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.token = token
	c.mu.Unlock()
	return c.try(ctx, endpoint, path, token, body, read)
}

// authenticate gets a token for the user.
func (c *Client) authenticate(ctx context.Context, endpoint string) (string, error) {
	body, err := json.Marshal(map[string]string{"name": c.options.User, "password": c.options.Password})
	if err != nil {
		return "", err
	}
	var reply struct {
		Token string `json:"token"`
	}
	err = c.try(ctx, endpoint, "/v3/auth/authenticate", "", body, func(r io.Reader) error {
		return json.NewDecoder(io.LimitReader(r, maxReply)).Decode(&reply)
	})
	var s *Status
	if errors.As(err, &s) && s.Code != codeUnavailable {
		return "", fmt.Errorf("user %q: %w", c.options.User, err)
	}
	if err != nil {
		return "", &unsentError{err} // what was asked for was not
	}
	return reply.Token, nil
}

// try makes a request to one member once.
func (c *Client) try(ctx context.Context, endpoint, path, token string, body []byte, read func(io.Reader) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, endpoint+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Grpc-Metadata-Hasleader", "true") // a member that has lost the others says so
	if token != "" {
		r.Header.Set("Authorization", token)
	}
	reply, err := c.http.Do(r)
	if err != nil {
		if ctx.Err() != nil {
			return ctxerr.Of(ctx)
		}
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err // without the address, which callers add
		}
		return err
	}
	defer reply.Body.Close()
	if reply.StatusCode != http.StatusOK {
		text, err := io.ReadAll(io.LimitReader(reply.Body, 64<<10))
		if err != nil {
			return err
		}
		return parseStatus(text, reply.StatusCode)
	}
	return read(reply.Body)
}

// unsentError is an error from before a request was sent.
type unsentError struct{ error }

func (e *unsentError) Unwrap() error { return e.error }

// isUnsent reports whether a request with this error has surely not been done.
func isUnsent(err error) bool {
	var op *net.OpError
	var unsent *unsentError
	return errors.As(err, &unsent) || errors.As(err, &op) && op.Op == "dial"
}

// isFinal reports whether another attempt at the same member ends like this one.
func isFinal(err error) bool {
	var (
		strange   *strangeError
		record    tls.RecordHeaderError
		alert     *net.OpError // what the member says of this end
		unknown   x509.UnknownAuthorityError
		host      x509.HostnameError
		invalid   x509.CertificateInvalidError
		untrusted *tls.CertificateVerificationError
	)
	if errors.As(err, &strange) {
		return strange.status < 500 // a proxy may answer 502 for a while
	}
	if strings.Contains(err.Error(), "tls: internal error") { // of the member, for a while
		return false
	}
	return errors.As(err, &record) || errors.As(err, &alert) && alert.Op == "remote error" || errors.As(err, &unknown) || errors.As(err, &host) ||
		errors.As(err, &invalid) || errors.As(err, &untrusted) || strings.Contains(err.Error(), "HTTP response to HTTPS client")
}
