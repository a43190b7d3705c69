// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"net"
	"net/netip"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/internal/transport"
)

// pyTorchHost is a server with what it has refused.
func pyTorchHost(t *testing.T, opts ...PyTorchServerOption) (*PyTorchServer, chan *PyTorchRefusal) {
	t.Helper()
	refused := make(chan *PyTorchRefusal, 10)
	s, err := ListenPyTorch("127.0.0.1:0", append(opts, WithRefusals(func(r *PyTorchRefusal) { refused <- r }))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s, refused
}

// rawPyTorch connects to a server as somebody who speaks bytes.
func rawPyTorch(t *testing.T, addr string) net.Conn {
	t.Helper()
	c, err := net.DialTimeout("tcp", addr, patience)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return c
}

// talk writes bytes, and wants others back.
func talk(t *testing.T, c net.Conn, send, want string) {
	t.Helper()
	if _, err := io.WriteString(c, send); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(want))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != want {
		t.Fatalf("% x was answered with % x, %v, want % x", send, got, err, want)
	}
}

const hello2 = "\x00\xce\xf7\x85\x3c"

// The bytes that PyTorch's processes were seen to send, and what they were answered.
func TestPyTorchBytes(t *testing.T) {
	s, refused := pyTorchHost(t)
	one := rawPyTorch(t, s.Addr())
	silent := rawPyTorch(t, s.Addr()) // 1.13's second connection
	two := rawPyTorch(t, s.Addr())
	talk(t, one, "\x03\x05\x00\x00\x00\x00\x00\x00\x00init/\x01\x00\x00\x00\x00\x00\x00\x00", "\x01\x00\x00\x00\x00\x00\x00\x00")
	talk(t, two, hello2+"\x0d\xd2\x04\x00\x00", "\xd2\x04\x00\x00")
	talk(t, two, "\x04\x05\x00\x00\x00\x00\x00\x00\x00init/\x01\x00\x00\x00\x00\x00\x00\x00", "\x02\x00\x00\x00\x00\x00\x00\x00")
	k := "\x02\x00\x00\x00\x00\x00\x00\x00/k"
	talk(t, one, "\x05\x01\x00\x00\x00\x00\x00\x00\x00"+k, "") // waits
	talk(t, two, "\x01"+k+"\x01\x00\x00\x00\x00\x00\x00\x00v", "")
	talk(t, one, "", "\x00")
	talk(t, one, "\x02"+k, "\x01\x00\x00\x00\x00\x00\x00\x00v")
	talk(t, two, "\x06\x01\x00\x00\x00\x00\x00\x00\x00"+k+"\x03"+k, "\x00\x01\x00\x00\x00\x00\x00\x00\x00v")
	// A wait that is given up, and one that comes as it is given up.
	talk(t, two, "\x06\x01\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00/z\x0c", "\x01")
	talk(t, two, "\x06\x01\x00\x00\x00\x00\x00\x00\x00"+k+"\x0c", "\x00\x01")
	// 1.13's set begins with a zero too.
	set := rawPyTorch(t, s.Addr())
	talk(t, set, "\x00\x02\x00\x00\x00\x00\x00\x00\x00/s\x01\x00\x00\x00\x00\x00\x00\x00w"+"\x06", "\x03\x00\x00\x00\x00\x00\x00\x00")
	talk(t, silent, "\x07"+k, "\x03")
	if v, err := s.Store().Get(t.Context(), "k"); string(v) != "v" || err != nil {
		t.Errorf("%q, %v", v, err)
	}
	if g := s.Generations(); len(g) != 2 || g[0] != PyTorch1 || g[1] != PyTorch2 {
		t.Errorf("%v were heard, want both", g)
	}
	s.Close()
	close(refused)
	for r := range refused {
		t.Error(r)
	}
}

// What breaks the protocol ends the connection, with a word about who sent what, and harms nobody else.
func TestPyTorchRefuses(t *testing.T) {
	long := strings.Repeat("\xff", 8)
	for name, c := range map[string]struct {
		send, say string
		gen       PyTorchGeneration
	}{
		"unknown opcode":     {hello2 + "\x77", "opcode 119", PyTorch2},
		"unknown of 1.13":    {"\x0b\x00\x00", "opcode 11", PyTorch1},
		"validate twice":     {hello2 + hello2, "VALIDATE", PyTorch2},
		"long key":           {hello2 + "\x03" + long, "a key of 18446744073709551615 bytes", PyTorch2},
		"long value":         {hello2 + "\x01\x02\x00\x00\x00\x00\x00\x00\x00/k\x01\x00\x00\x20\x00\x00\x00\x00", "a value of 536870913 bytes", PyTorch2},
		"many keys":          {hello2 + "\x06" + long, "keys", PyTorch2},
		"many pairs":         {hello2 + "\x0b" + long, "keys", PyTorch2},
		"add to text":        {hello2 + "\x04\x05\x00\x00\x00\x00\x00\x00\x00/text" + long, "not an integer", PyTorch2},
		"talk while waiting": {hello2 + "\x06\x01\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00/z\x07", "while its wait", PyTorch2},
		"nearly Cohort's":    {"\xc0HORS", "does not speak", 0},
		"another protocol":   {"GET / HTTP/1.1\r\n", "opcode 71", PyTorch1},
		"2.1's delete":       {"\x09", "2.0 and 2.1", PyTorch1},
	} {
		t.Run(name, func(t *testing.T) {
			s, refused := pyTorchHost(t)
			if err := s.Store().Set(t.Context(), "text", []byte("abc")); err != nil {
				t.Fatal(err)
			}
			c2 := rawPyTorch(t, s.Addr())
			talk(t, c2, c.send, "")
			r := <-refused
			if !strings.Contains(r.Error(), c.say) || !strings.Contains(r.Error(), c2.LocalAddr().String()) || r.Generation != c.gen || len(r.Sent) == 0 {
				t.Errorf("%v (%v, % x), want %q, the peer and what it sent", r, r.Generation, r.Sent, c.say)
			}
			if n, err := c2.Read(make([]byte, 1)); n > 0 || err == nil {
				t.Errorf("%d bytes came, %v, want the connection's end", n, err)
			}
			talk(t, rawPyTorch(t, s.Addr()), "\x06", "\x01\x00\x00\x00\x00\x00\x00\x00")
		})
	}
}

func TestPyTorchAdmits(t *testing.T) {
	asked := make(chan netip.Addr, 10)
	s, refused := pyTorchHost(t, WithAdmission(func(peer netip.Addr) bool { asked <- peer; return false }))
	c := rawPyTorch(t, s.Addr())
	if n, err := c.Read(make([]byte, 1)); n > 0 || err == nil {
		t.Errorf("%d, %v, want the connection's end", n, err)
	}
	if peer := <-asked; !peer.IsLoopback() || peer.Is4In6() {
		t.Errorf("%v was asked for", peer)
	}
	if r := <-refused; !strings.Contains(r.Error(), c.LocalAddr().String()) {
		t.Errorf("%v does not name the peer", r)
	}
	if _, err := DialPyTorch(t.Context(), s.Addr()); err == nil || !strings.Contains(err.Error(), "hung up") {
		t.Errorf("%v, want that the server hung up", err)
	}
}

// One who joins waits for all, and says how many have come when they have not.
func TestPyTorchJoin(t *testing.T) {
	s, _ := pyTorchHost(t)
	short, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if err := s.Join(short, 2); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "1 of 2") {
		t.Errorf("%v, want the deadline and how many have joined", err)
	}
	joined := make(chan error, 1)
	go func() { joined <- s.Join(t.Context(), 3) }()
	c, err := DialPyTorch(t.Context(), s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Join(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-joined; err != nil {
		t.Error(err)
	}
	if err := s.Meet(t.Context(), 3); err != nil {
		t.Error(err)
	}
	if v, err := c.Get(t.Context(), PyTorchMet); string(v) != "2" || err != nil {
		t.Errorf("%q, %v of who has come", v, err)
	}
	if g, err := s.AwaitGeneration(t.Context()); g != PyTorch2 || err != nil {
		t.Errorf("%v, %v", g, err)
	}
	if n, err := c.NumKeys(t.Context(), ""); n != 0 || err != nil {
		t.Errorf("%d keys, %v", n, err)
	}
}

// fakePyTorch answers each connection by a function.
func fakePyTorch(t *testing.T, answer func(n int, c net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for n := 0; ; n++ {
			c, err := l.Accept()
			if err != nil {
				return
			}
			answer(n, c)
			c.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-ended })
	return l.Addr().String()
}

// What a client finds at the other end, and what it says of it.
func TestPyTorchProbe(t *testing.T) {
	read := func(c net.Conn, n int) []byte {
		b := make([]byte, n)
		c.SetDeadline(time.Now().Add(patience))
		io.ReadFull(c, b)
		return b
	}
	for name, c := range map[string]struct {
		answer func(n int, c net.Conn)
		gen    PyTorchGeneration
		say    string
	}{
		"1.13": {func(n int, c net.Conn) {
			if n == 2 {
				read(c, 1)
				c.Write(make([]byte, 8))
			} else if n < 4 {
				read(c, 9)
			}
		}, PyTorch1, ""},
		"2.2, without a ping": {func(n int, c net.Conn) {
			if n == 1 {
				read(c, 6)
				c.Write(make([]byte, 8))
			} else if n == 0 {
				read(c, 1)
			}
		}, PyTorch2, ""},
		"2.1": {func(n int, c net.Conn) {
			switch n {
			case 2:
				read(c, 1)
				c.Write(make([]byte, 8))
			case 3:
				read(c, 9)
				c.Write([]byte{1})
			}
		}, 0, "2.0 or 2.1"},
		"nothing":  {func(n int, c net.Conn) { read(c, 1) }, 0, "no store of PyTorch's"},
		"a parrot": {func(n int, c net.Conn) { c.Write(read(c, 10)) }, 0, "answered a ping with"},
	} {
		t.Run(name, func(t *testing.T) {
			client, err := DialPyTorch(t.Context(), fakePyTorch(t, c.answer))
			if err != nil {
				if c.say == "" || !strings.Contains(err.Error(), c.say) {
					t.Errorf("%v, want %q", err, c.say)
				}
				return
			}
			defer client.Close()
			if c.gen == 0 || client.Generation() != c.gen {
				t.Errorf("found %v", client.Generation())
			}
		})
	}
}

// A server that goes away, or that lies, ends the calls.
func TestPyTorchClientLoses(t *testing.T) {
	const ready, cancelled = "\x00", "\x01"
	for name, c := range map[string]struct {
		wait   string // what the server says to the wait
		cancel string // to its end: the wait may have become too long for the client
		get    string // to the question for the value, if it comes to that
		want   error
	}{
		"hangs up":                   {"", "", "", ErrLost},
		"no such byte":               {"\x09", "", "", errNonsense},
		"a long value":               {ready, cancelled, "\xff\xff\xff\xff\x00\x00\x00\x00", errNonsense},
		"less than it said":          {ready, cancelled, "\x10\x00\x00\x00\x00\x00\x00\x00abc", ErrLost},
		"hangs up later":             {"late", "", "", ErrLost},
		"no such byte later":         {"late", "\x09", "", errNonsense},
		"no such byte at the end":    {"late", ready + "\x09", "", errNonsense},
		"a wait that came just then": {"late", ready + cancelled, "\x10", ErrLost},
	} {
		t.Run(name, func(t *testing.T) {
			addr := fakePyTorch(t, func(n int, conn net.Conn) {
				in := bufio.NewReader(conn)
				conn.SetDeadline(time.Now().Add(patience))
				if b, err := in.Peek(10); err == nil {
					conn.Write(b[6:10])
					in.Discard(10)
				}
				if _, err := in.Discard(19); err == nil && c.wait != "late" {
					io.WriteString(conn, c.wait)
				}
				for c.wait != "" {
					b, err := in.ReadByte()
					if err == nil && b == byte(verbCancelWait) && c.cancel != "" {
						io.WriteString(conn, c.cancel)
						continue
					}
					if err == nil && b == byte(verbGet) {
						in.Discard(9)
						io.WriteString(conn, c.get)
					}
					return
				}
			})
			client, err := DialPyTorch(t.Context(), addr)
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			var e *Error
			if _, err := client.Get(t.Context(), "k"); !errors.Is(err, c.want) || !errors.As(err, &e) || e.Addr != addr {
				t.Errorf("%v, want %v and the address", err, c.want)
			}
		})
	}
	s, _ := pyTorchHost(t)
	client, err := DialPyTorch(t.Context(), s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	waits := make(chan error, 1)
	go func() { waits <- client.Wait(t.Context(), "never") }()
	for ready := false; !ready; { // until the wait is under way
		s.mem.mu.Lock()
		ready = len(s.mem.m.waiting) > 0
		s.mem.mu.Unlock()
	}
	s.Close()
	if err := <-waits; !errors.Is(err, ErrLost) {
		t.Errorf("%v, want ErrLost", err)
	}
	if err := client.Set(t.Context(), "k", nil); !errors.Is(err, ErrLost) {
		t.Errorf("%v, want ErrLost", err)
	}
	<-client.Lost()
}

// A server that takes long to say that it has forgotten a wait is not one that has gone.
func TestPyTorchSlowServer(t *testing.T) {
	addr := fakePyTorch(t, func(n int, conn net.Conn) {
		in := bufio.NewReader(conn)
		conn.SetDeadline(time.Now().Add(patience))
		if b, err := in.Peek(10); err == nil {
			conn.Write(b[6:10])
		}
		if _, err := in.Discard(10 + 19 + 1); err == nil { // the greeting, a wait, and its end
			time.Sleep(cancelGrace + 50*time.Millisecond)
			io.WriteString(conn, "\x01")
		}
		if _, err := in.Discard(19); err == nil {
			io.WriteString(conn, "\x00")
		}
		for {
			b, err := in.ReadByte()
			switch {
			case err != nil:
				return
			case b == byte(verbCancelWait):
				io.WriteString(conn, "\x01")
			default:
				in.Discard(9)
				io.WriteString(conn, "\x01\x00\x00\x00\x00\x00\x00\x00v")
			}
		}
	})
	client, err := DialPyTorch(t.Context(), addr)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if v, err := client.Get(t.Context(), "k"); err != nil || string(v) != "v" {
		t.Errorf("%q, %v", v, err)
	}
}

// A wait that was begun anew leaves nothing behind that ends later calls.
func TestPyTorchWaitsAnew(t *testing.T) {
	s, _ := pyTorchHost(t)
	client, err := DialPyTorch(t.Context(), s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	time.AfterFunc(3*firstSlice, func() { s.mem.Set(context.Background(), "late", nil) })
	if err := client.Wait(t.Context(), "late"); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 2*firstSlice)
	defer cancel()
	for _, wait := range []func() error{
		func() error { return nil },
		func() error { return client.Wait(short, "never") },
	} {
		if err := wait(); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v, want the deadline", err)
		}
		time.Sleep(cancelGrace + 10*time.Millisecond) // what bounded the wait's end is over
		if err := client.Set(t.Context(), "k", nil); err != nil {
			t.Error(err)
		}
	}
}

// heldUp is a connection whose deadline is set late where that ends what is under way:
// who sets it is held up.
type heldUp struct {
	net.Conn
	set chan struct{} // closed when it has been
}

func (c *heldUp) SetDeadline(t time.Time) error {
	if t.Equal(past) {
		time.Sleep(100 * time.Millisecond)
		defer close(c.set)
	}
	return c.Conn.SetDeadline(t)
}

// The end of a call's context ends nothing but that call, whenever the system comes to it.
func TestPyTorchWaitEndsAlone(t *testing.T) {
	s, _ := pyTorchHost(t)
	client, err := DialPyTorch(t.Context(), s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	held := &heldUp{Conn: rawPyTorch(t, s.Addr()), set: make(chan struct{})}
	line := newPyTorchLine(held)
	if known, err := line.greet(t.Context()); err != nil || !known {
		t.Fatal(known, err)
	}
	client.idle[0].conn.Close()
	client.idle[0] = line
	short, cancel := context.WithTimeout(t.Context(), firstSlice+firstSlice/2)
	defer cancel()
	if err := client.Wait(short, "never"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v, want the deadline", err)
	}
	<-held.set
	if err := client.Set(t.Context(), "k", nil); err != nil {
		t.Errorf("the next call: %v", err)
	}
}

// What the protocol has no words for.
func TestPyTorchLacks(t *testing.T) {
	s, _ := pyTorchHost(t)
	old, err := DialPyTorch(t.Context(), s.Addr(), WithGeneration(PyTorch1))
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	for name, err := range map[string]error{
		"append":     old.Append(t.Context(), "k", nil),
		"queue push": old.QueuePush(t.Context(), "k", nil),
	} {
		if !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), "1.13") {
			t.Errorf("%s: %v, want ErrUnsupported and the version", name, err)
		}
	}
	if err := old.MultiSet(t.Context(), []string{"a", "b"}, [][]byte{[]byte("1"), []byte("2")}); err != nil {
		t.Error(err)
	}
	if v, err := old.MultiGet(t.Context(), "b", "a"); err != nil || string(bytes.Join(v, nil)) != "21" {
		t.Errorf("%q, %v", v, err)
	}
	client, err := DialPyTorch(t.Context(), s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	large := make([]byte, maxPyTorchValue+1)
	var e *Error
	if err := client.Set(t.Context(), "large", large); !errors.Is(err, ErrLimit) || !errors.As(err, &e) || e.Keys[0] != "large" {
		t.Errorf("%v, want ErrLimit", err)
	}
	if err := client.MultiSet(t.Context(), []string{"a", "large"}, [][]byte{nil, large}); !errors.Is(err, ErrLimit) || !errors.As(err, &e) || e.Keys[0] != "large" {
		t.Errorf("%v, want ErrLimit that names large", err)
	}
	if err := client.Set(t.Context(), "large", large[1:]); err != nil {
		t.Error(err)
	}
	if v, err := client.Get(t.Context(), "large"); len(v) != maxPyTorchValue || err != nil {
		t.Errorf("%d bytes, %v", len(v), err)
	}
	// Keys that PyTorch's users may have, and ours may not name.
	c := rawPyTorch(t, s.Addr())
	talk(t, c, hello2+"\x01\x01\x00\x00\x00\x00\x00\x00\x00/\x01\x00\x00\x00\x00\x00\x00\x00v"+"\x03\x01\x00\x00\x00\x00\x00\x00\x00/", "\x01\x00\x00\x00\x00\x00\x00\x00v")
}

// Values beyond the 8 MiB of PyTorch's server with libuv are taken and given back, as long
// as there is room for all; who finds none is told alone.
func TestPyTorchLargeValues(t *testing.T) {
	s, refused := pyTorchHost(t)
	head := hello2 + "\x01\x02\x00\x00\x00\x00\x00\x00\x00/k"
	const size = 9 << 20
	large := strings.Repeat("large ", size/6)
	c := rawPyTorch(t, s.Addr())
	length := string(binary.LittleEndian.AppendUint64(nil, uint64(len(large))))
	talk(t, c, head+length+large+"\x03\x02\x00\x00\x00\x00\x00\x00\x00/k", length+large)
	talk(t, c, "\x09\x02\x00\x00\x00\x00\x00\x00\x00/k"+length+large+"\x0a"+strings.Repeat("\x01\x00\x00\x00\x00\x00\x00\x00", 1)+"\x02\x00\x00\x00\x00\x00\x00\x00/k",
		string(binary.LittleEndian.AppendUint64(nil, uint64(2*len(large))))+large+large)
	m := s.mem
	if have, want := m.grow(0), int64(2*len(large)+1); have < want || have > want+1<<10 {
		t.Errorf("%d bytes are counted, want %d and a little", have, want)
	}
	m.grow(maxServed - size - 1<<20) // as if others had set that
	over := rawPyTorch(t, s.Addr())
	talk(t, over, head+length+large[:1<<17], "")
	for n := 1 << 17; ; n += 1 << 17 { // until it is refused
		if _, err := io.WriteString(over, large[:1<<17]); err != nil || n > len(large) {
			break
		}
	}
	if r := <-refused; !strings.Contains(r.Error(), "no room") || !strings.Contains(r.Error(), over.LocalAddr().String()) {
		t.Errorf("%v, want that there is no room", r)
	}
	if _, err := over.Read(make([]byte, 1)); err == nil {
		t.Error("it is answered")
	}
	talk(t, c, "\x04\x02\x00\x00\x00\x00\x00\x00\x00/n\x01\x00\x00\x00\x00\x00\x00\x00", "\x01\x00\x00\x00\x00\x00\x00\x00")
	for s.coming.Load() != 0 { // its connection may end a little later
		runtime.Gosched()
	}
	m.grow(-(maxServed - size - 1<<20))
	talk(t, c, "\x08\x02\x00\x00\x00\x00\x00\x00\x00/k", "\x01\x00\x00\x00\x00\x00\x00\x00")
	if have := m.grow(0); have > 1<<10 {
		t.Errorf("%d bytes are counted after all has been deleted", have)
	}
}

// numberTexts are values, and what PyTorch 1.13's and 2.15's servers, with libuv and without,
// answered to an add of 1: what has no number in front ends the client's connection.
var numberTexts = []struct {
	value string
	sum   int64
	hangs bool
}{
	{"5", 6, false}, {" 5", 6, false}, {"\t\n\v\f\r 7", 8, false}, {"+5", 6, false}, {"-5", -4, false}, {"5x", 6, false}, {"5.9", 6, false},
	{"1e3", 2, false}, {"0x10", 1, false}, {"010", 11, false}, {"5\x00", 6, false}, {"5 6", 6, false}, {"1_000", 2, false}, {"12\n", 13, false},
	{strings.Repeat("0", 50) + "7", 8, false}, {"9223372036854775807", math.MinInt64, false}, {"-9223372036854775808", math.MinInt64 + 1, false},
	{"", 0, true}, {" ", 0, true}, {"abc", 0, true}, {"+", 0, true}, {"--5", 0, true}, {"+-5", 0, true}, {"\x005", 0, true}, {"\xa05", 0, true},
	{"9223372036854775808", 0, true}, {"-9223372036854775809", 0, true}, {"99999999999999999999999", 0, true},
}

// Add reads numbers as PyTorch's servers do, and its FileStore, for which an empty value is 0.
func TestPyTorchNumbers(t *testing.T) {
	s, err := ListenPyTorch("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	file, err := OpenPyTorchFile(filepath.Join(t.TempDir(), "file"), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for _, tc := range numberTexts {
		c, err := DialPyTorch(t.Context(), s.Addr())
		if err != nil {
			t.Fatal(err)
		}
		for _, st := range []Store{c, file} {
			if err := st.Set(t.Context(), "k", []byte(tc.value)); err != nil {
				t.Fatal(err)
			}
			sum, err := st.Add(t.Context(), "k", 1)
			if want := tc.hangs && !(st == file && tc.value == ""); (err != nil) != want || err == nil && !tc.hangs && sum != tc.sum {
				t.Errorf("%T: %q and 1 are %d, %v; want %d, an error: %v", st, tc.value, sum, err, tc.sum, want)
			} else if st == file && want && !errors.Is(err, ErrNotInteger) {
				t.Errorf("%q: %v, want ErrNotInteger", tc.value, err)
			}
		}
		c.Close()
	}
	c := rawPyTorch(t, s.Addr()) // a barrier's counter
	talk(t, c, hello2+"\x01\x02\x00\x00\x00\x00\x00\x00\x00/b\x03\x00\x00\x00\x00\x00\x00\x00 5x"+"\x12\x02\x00\x00\x00\x00\x00\x00\x00/b\x06\x00\x00\x00\x00\x00\x00\x00", "\x00")
}

// A file that is none of PyTorch's is told of and left alone; what somebody has
// half written is cut off.
func TestPyTorchFileDamage(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "own")
	own, err := OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	own.Close()
	if _, err := OpenPyTorchFile(path, -1); !errors.Is(err, errDamaged) || !strings.Contains(err.Error(), path) {
		t.Errorf("%v, want that it is no FileStore", err)
	}
	s, err := OpenPyTorchFile(filepath.Join(dir, "torn"), -1)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Set(t.Context(), "k", []byte("v")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.f.WriteAt([]byte("\x02\x00\x00\x00/t\x05\x00\x00\x00to"), s.end); err != nil {
		t.Fatal(err)
	}
	if v, err := s.Get(t.Context(), "k"); string(v) != "v" || err != nil {
		t.Errorf("%q, %v", v, err)
	}
	if err := s.Set(t.Context(), "l", []byte("w")); err != nil {
		t.Fatal(err)
	}
	if n, err := s.NumKeys(t.Context(), ""); n != 2 || err != nil {
		t.Errorf("%d keys, %v", n, err)
	}
	if _, err := s.QueuePop(t.Context(), "q"); !errors.Is(err, ErrUnsupported) {
		t.Errorf("%v, want ErrUnsupported", err)
	}
}

// Whatever comes, requests are read within their limits, and written again as they came.
func FuzzPyTorchRequests(f *testing.F) {
	for _, g := range []PyTorchGeneration{PyTorch1, PyTorch2} {
		for v := range verb(20) {
			if _, ok := opcodeOf(v, g); !ok || v == verbValidate || v > verbBarrier {
				continue
			}
			q := pyTorchRequest{verb: v, keys: []string{"k"}, value: []byte("value"), values: [][]byte{nil}, expected: []byte("old"), number: 5}
			f.Add(byte(g), appendPyTorch(nil, g, &q))
		}
	}
	f.Fuzz(func(t *testing.T, gen byte, b []byte) {
		g := PyTorch2
		if gen%2 == 1 {
			g = PyTorch1
		}
		r := pyTorchReader{in: bufio.NewReader(bytes.NewReader(b)), gen: g}
		for {
			v, err := r.verb()
			if err != nil {
				return
			}
			q, err := r.arguments(v)
			if err != nil {
				return
			}
			again := appendPyTorch(nil, g, &q)
			if !bytes.HasPrefix(b, again) {
				t.Fatalf("%v is % x, came as % x", v, again, b)
			}
			b = b[len(again):]
		}
	})
}

// Whatever a server says, a client ends its calls.
func FuzzPyTorchAnswers(f *testing.F) {
	f.Add([]byte("\x00\x01\x00\x00\x00\x00\x00\x00\x00v"))
	f.Add([]byte("\x01\x01\x00\x00\x00\x00\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, answer []byte) {
		calls := []func(c *PyTorchClient){
			func(c *PyTorchClient) { c.Get(t.Context(), "k") },
			func(c *PyTorchClient) { c.Add(t.Context(), "k", 1) },
			func(c *PyTorchClient) { c.CompareAndSet(t.Context(), "k", nil, []byte("v")) },
			func(c *PyTorchClient) { c.MultiGet(t.Context(), "k", "l") },
			func(c *PyTorchClient) { c.QueuePop(t.Context(), "k") },
			func(c *PyTorchClient) { c.NumKeys(t.Context(), "") },
			func(c *PyTorchClient) { c.Delete(t.Context(), "k") },
		}
		for _, call := range calls {
			here, there := net.Pipe()
			go func() {
				go io.Copy(io.Discard, there)
				there.Write(answer)
				there.Close()
			}()
			c := &PyTorchClient{
				addr: "pipe", gen: PyTorch2, pings: true, busy: map[*pyTorchLine]struct{}{}, gone: make(chan struct{}),
				knows: map[verb]bool{verbQueueLen: true, verbListKeys: true},
			}
			c.methods.do = c.do
			c.idle = append(c.idle, newPyTorchLine(here))
			call(c)
			c.Close()
		}
	})
}

// Whatever is in a file, it is read within its limits, and what is read is written again as it was.
func FuzzPyTorchFile(f *testing.F) {
	m := newMachine()
	m.put("k", []byte("v"))
	for _, q := range []request{{op: opSet, keys: []string{"k"}}, {op: opDelete, keys: []string{"gone"}}, {op: opAdd, keys: []string{refKey}}} {
		f.Add(pyTorchFormat{}.appendRecord(nil, &q, m), true)
	}
	f.Fuzz(func(t *testing.T, b []byte, atEnd bool) {
		q, n, err := pyTorchFormat{}.nextRecord(b, atEnd)
		if err != nil {
			if errors.Is(err, errShort) && n != 0 && n <= len(b) {
				t.Fatalf("%d bytes would be enough, there are %d", n, len(b))
			}
			return
		}
		m := newMachine()
		m.apply(call{}, q.clone(), nil)
		again := pyTorchFormat{}.appendRecord(nil, &q, m)
		if q.op == opSet && !bytes.Equal(again, b[:n]) {
			t.Fatalf("% x was read, % x would be written", b[:n], again)
		}
	})
}

// TestPyTorchTellsLittle: strangers who come again and again do not fill a log, and are
// counted.
func TestPyTorchTellsLittle(t *testing.T) {
	told := make(chan *PyTorchRefusal, 64)
	s, err := ListenPyTorch("127.0.0.1:0", WithAdmission(func(netip.Addr) bool { return false }),
		WithRefusals(func(r *PyTorchRefusal) { told <- r }))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for range toldAtOnce + 10 {
		c, err := net.Dial("tcp", s.Addr())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Error("a stranger was answered")
		}
		c.Close()
	}
	if len(told) != toldAtOnce {
		t.Errorf("%d lines of %d refusals, want %d", len(told), toldAtOnce+10, toldAtOnce)
	}
	if untold, tell := s.telling.one(time.Now().Add(2 * time.Minute)); !tell || untold != 10 {
		t.Errorf("a minute later: %d untold, %t; want 10, true", untold, tell)
	}
	if text := (&PyTorchRefusal{Server: "a", Peer: "b", Err: errors.New("c"), Untold: 10}).Error(); !strings.Contains(text, "10 others") {
		t.Errorf("%q does not say of 10 others", text)
	}
}

// TestPyTorchStrangersSpeakNothing: what comes from elsewhere than from PyTorch, such as a
// port scan or a rank of Cohort's own jobs, does not make a job one of PyTorch 1.13.
func TestPyTorchStrangersSpeakNothing(t *testing.T) {
	s, refused := pyTorchHost(t)
	for sent, want := range map[string]string{
		"GET / HTTP/1.1\r\n\r\n":               "opcode 71",
		"\xc0HURT, or nearly":                  "does not speak PyTorch's protocol",
		"\x03\xff\xff\xff\xff\xff\xff\xff\x7f": "a key of",
	} {
		c := rawPyTorch(t, s.Addr())
		if _, err := io.WriteString(c, sent); err != nil {
			t.Fatal(err)
		}
		if r := <-refused; !strings.Contains(r.Error(), want) {
			t.Errorf("%q: %v, want %q", sent, r, want)
		}
	}
	if g := s.Generations(); len(g) > 0 {
		t.Errorf("strangers are taken for clients of %v", g)
	}
	if _, ok := s.mem.peek([]byte(PyTorchSpoken1)); ok {
		t.Error("the job's ranks are told that PyTorch 1.13 is among them")
	}
}

// TestPyTorchIsNotCohort: a Cohort client that comes to PyTorch's store is told so at once, and
// so is who looks after the store.
func TestPyTorchIsNotCohort(t *testing.T) {
	s, refused := pyTorchHost(t)
	_, err := Dial(t.Context(), s.Addr(), transport.NewToken().Text())
	if err == nil || !strings.Contains(err.Error(), "PyTorch's store is served there") || strings.Contains(err.Error(), "token differs") {
		t.Errorf("the client says %v", err)
	}
	if text := (<-refused).Error(); !strings.Contains(text, "a Cohort client came to PyTorch's store") || strings.Contains(text, "which sent") {
		t.Errorf("the server says %s", text)
	}
	select {
	case r := <-refused:
		t.Errorf("and then %v", r)
	default:
	}
	if spoken := s.Generations(); len(spoken) > 0 {
		t.Errorf("it has taken it for PyTorch %v", spoken)
	}
}
