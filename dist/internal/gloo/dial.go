// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"
)

// dial makes a connection from this rank's address.
func (m *rendezvous) dial(ctx context.Context, at netip.AddrPort) (net.Conn, error) {
	d := net.Dialer{KeepAliveConfig: keepAlive, LocalAddr: &net.TCPAddr{IP: m.addr.AsSlice(), Zone: m.addr.Zone()}}
	return d.DialContext(ctx, "tcp", at.String())
}

// dialing is the connections that this rank makes.
type dialing struct {
	m      *rendezvous
	ctx    context.Context
	cancel context.CancelFunc
	failed chan error
	under  sync.WaitGroup
}

func (m *rendezvous) dialing(ctx context.Context) *dialing {
	ctx, cancel := context.WithCancel(ctx)
	return &dialing{m: m, ctx: ctx, cancel: cancel, failed: make(chan error, len(m.b.cfg.Members))}
}

// end gives up those that are under way, as they are only where the meeting has failed.
func (d *dialing) end() {
	d.cancel()
	d.under.Wait()
}

// start connects to a rank, and says hello.
func (d *dialing) start(rank int, at netip.AddrPort, hello []byte) {
	d.under.Go(func() {
		conn, err := d.connect(at, hello)
		if err == nil && !d.m.attach(rank, conn) {
			conn.Close()
			err = errors.New("there is a connection already")
		}
		if err == nil {
			return
		}
		if d.ctx.Err() != nil {
			d.failed <- d.m.missing(d.ctx, []int{rank})
			return
		}
		err = fmt.Errorf("connect to %v: %w", at, err)
		if at.Addr().IsLoopback() && !d.m.addr.IsLoopback() {
			err = fmt.Errorf("%w; it has published an address that only its own host reaches, which is what the name of that host stands for: GLOO_SOCKET_IFNAME, set for that rank, names the interface to use", err)
		}
		e := d.m.b.blame(nil, rank, err)
		e.Op = "init"
		d.failed <- e
	})
}

// connect makes a connection, trying a few times.
func (d *dialing) connect(at netip.AddrPort, hello []byte) (conn net.Conn, err error) {
	for try := range numDials {
		if try > 0 {
			select {
			case <-time.After(dialPause << try):
			case <-d.ctx.Done():
				return nil, err
			}
		}
		if conn, err = d.m.dial(d.ctx, at); err == nil {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	made := conn // the result may be another when the context ends
	stop := context.AfterFunc(d.ctx, func() { made.Close() })
	defer stop()
	if len(hello) > 0 {
		if _, err := conn.Write(hello); err != nil {
			conn.Close()
			return nil, err
		}
	}
	if cfg := d.m.b.cfg.TLS; cfg != nil {
		client := tls.Client(conn, cfg)
		if err := client.HandshakeContext(d.ctx); err != nil {
			conn.Close()
			return nil, err
		}
		return client, nil
	}
	return conn, nil
}
