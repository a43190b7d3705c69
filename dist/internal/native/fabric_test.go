// SPDX-License-Identifier: Apache-2.0

package native

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/internal/transport"
)

// newTestFabric returns a fabric with a port, and one that can reach it as
// rank 0 of its book.
func newTestFabric(t *testing.T) (at, from *Fabric) {
	t.Helper()
	token := transport.NewToken()
	port, err := transport.Listen("127.0.0.1:0", token)
	if err != nil {
		t.Fatal(err)
	}
	at, from = NewFabric(token, transport.EncryptControl), NewFabric(token, transport.EncryptControl)
	at.Listen(port, true)
	from.SetBook([]Address{{TCP: port.Addr()}})
	t.Cleanup(func() { _ = at.Close() })
	return at, from
}

// answer says hello to a group and returns what comes back.
func answer(t *testing.T, f *Fabric, h hello) (kind byte, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	conn, err := f.dial(ctx, 0, overTCP, h)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	err = conn.Do(ctx, func() error {
		var payload []byte
		kind, payload, err = conn.ReadFrame(nil, maxControl)
		text = string(payload)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return kind, text
}

// done answers every hello.
func done(conn *transport.Conn, _ hello) bool {
	_ = conn.WriteFrame(frameDone)
	return false
}

func TestHelloWaitsForItsGroup(t *testing.T) {
	at, from := newTestFabric(t)
	came := make(chan byte, 1)
	go func() {
		kind, _ := answer(t, from, hello{purpose: forControl, rank: 1, group: "late"})
		came <- kind
	}()
	for parked := 0; parked == 0; time.Sleep(time.Millisecond) {
		at.mu.Lock()
		parked = len(at.parked)
		at.mu.Unlock()
	}
	other, err := at.attach("other", 2, done)
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-came:
		t.Fatal("a hello was answered by another group")
	default:
	}
	late, err := at.attach("late", 2, done)
	if err != nil {
		t.Fatal(err)
	}
	if kind := <-came; kind != frameDone {
		t.Errorf("the hello was answered by a frame of kind %d", kind)
	}
	if kind, text := answer(t, from, hello{rank: 2, group: "late"}); kind != frameRefused || !strings.Contains(text, "rank 2 of a group of 2") {
		t.Errorf("a rank beyond the group got %d %q", kind, text)
	}
	other.Close()
	late.Close()
	if kind, text := answer(t, from, hello{group: "late"}); kind != frameRefused || !strings.Contains(text, "closed") {
		t.Errorf("a hello to a closed group got %d %q", kind, text)
	}
	if _, err := at.attach("late", 2, done); err == nil {
		t.Error("a closed group was made again under its key")
	}
	at.Forget("never", "")
	if kind, text := answer(t, from, hello{group: "never"}); kind != frameRefused || !strings.Contains(text, "closed") {
		t.Errorf("a hello to a group that will not be made got %d %q", kind, text)
	}
}

// TestHelloFlood: hellos to groups that nobody makes take a bounded number of
// connections, and none when the fabric is closed.
func TestHelloFlood(t *testing.T) {
	at, from := newTestFabric(t)
	var conns []*transport.Conn
	for range parkedAtLeast {
		conn, err := from.dial(t.Context(), 0, overTCP, hello{group: "nobody's"})
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
	}
	for open := 0; open < parkedAtLeast; time.Sleep(time.Millisecond) {
		at.mu.Lock()
		open = len(at.open)
		at.mu.Unlock()
	}
	if kind, text := answer(t, from, hello{group: "nobody's"}); kind != frameRefused || !strings.Contains(text, "64 connections wait") {
		t.Errorf("one more got %d %q", kind, text)
	}
	if err := at.Close(); err != nil {
		t.Error(err)
	}
	for _, c := range conns {
		_, _, _ = c.ReadFrame(nil, maxControl) // a refusal, or the end
		c.Close()
	}
}

// TestHelloOfTheDead: a connection that waits for a group gives its place up
// when its peer has gone.
func TestHelloOfTheDead(t *testing.T) {
	at, from := newTestFabric(t)
	awaitOpen := func(want int) {
		for open := -1; open != want; time.Sleep(time.Millisecond) {
			at.mu.Lock()
			open = len(at.open)
			at.mu.Unlock()
		}
	}
	var conns []*transport.Conn
	for range parkedAtLeast {
		conn, err := from.dial(t.Context(), 0, overTCP, hello{group: "nobody's"})
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
	}
	awaitOpen(parkedAtLeast)
	for _, c := range conns {
		c.Close()
	}
	awaitOpen(0)
	at.mu.Lock()
	defer at.mu.Unlock()
	if len(at.parked) > 0 {
		t.Errorf("%d groups are waited for by nobody", len(at.parked))
	}
}

// between is a connection between two addresses.
type between struct {
	net.Conn
	local, remote string
}

func (b between) LocalAddr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(b.local))
}

func (b between) RemoteAddr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(b.remote))
}

// What the policy wants to go through TLS is not taken plain from another host.
func TestPlainConnectionsOfOtherHosts(t *testing.T) {
	for _, tt := range []struct {
		policy        transport.Encrypt
		control, data bool // taken
	}{{transport.EncryptControl, false, true}, {transport.EncryptAll, false, false}, {transport.EncryptNone, true, true}} {
		f := NewFabric(transport.NewToken(), tt.policy)
		far := transport.NewConn(between{local: "10.0.0.1:1", remote: "10.0.0.2:1"}, Proto)
		near := transport.NewConn(between{local: "10.0.0.1:1", remote: "10.0.0.1:2"}, Proto)
		for why, taken := range map[purpose]bool{forControl: tt.control, forCollectives: tt.data, forMessages: tt.data} {
			if err := f.checkShelter(far, why); (err == nil) != taken || err != nil && !errors.Is(err, transport.ErrNeedsTLS) {
				t.Errorf("%v: purpose %d from another host: %v, want it taken: %v", tt.policy, why, err, taken)
			}
			if err := f.checkShelter(near, why); err != nil {
				t.Errorf("%v: purpose %d from this host: %v", tt.policy, why, err)
			}
		}
	}
}
