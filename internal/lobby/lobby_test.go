// SPDX-License-Identifier: Apache-2.0

package lobby

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cohort-ml/cohort/internal/seeded"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds what should happen at once.
const patience = 20 * time.Second

func host(n int) Source {
	return Host(netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)}))
}

// The source with the most loses its oldest, and of several such sources the one that has been there for
// longest, whoever has come and gone before.
func TestWhoHasToGo(t *testing.T) {
	r := rand.New(rand.NewPCG(seeded.Of(t), 1))
	vs := newVisitors()
	var there []*visitor // oldest first
	for range 20_000 {
		switch k := r.IntN(10); {
		case k < 5 || len(there) == 0:
			v := &visitor{}
			vs.enter(v, host(r.IntN(1+r.IntN(20))))
			there = append(there, v)
		case k < 8:
			i := r.IntN(len(there))
			vs.leave(there[i])
			vs.leave(there[i]) // which changes nothing
			there = slices.Delete(there, i, i+1)
		default:
			num := map[Source]int{}
			most := 0
			for _, v := range there {
				num[v.from.Source]++
				most = max(most, num[v.from.Source])
			}
			i := slices.IndexFunc(there, func(v *visitor) bool { return num[v.from.Source] == most })
			if got := vs.next(); got != there[i] {
				t.Fatalf("visitor %d of %v has to go, want %d of %v", got.turn, got.from.Source, there[i].turn, there[i].from.Source)
			}
			vs.leave(there[i])
			there = slices.Delete(there, i, i+1)
		}
		if vs.num != len(there) || len(there) > 0 && vs.oldest() != there[0] {
			t.Fatalf("%d visitors, want %d", vs.num, len(there))
		}
	}
	for _, v := range there {
		vs.leave(v)
	}
	if vs.next() != nil || vs.oldest() != nil || len(vs.sources) != 0 || held.Load() != 0 {
		t.Errorf("%d visitors of %d sources, %d held", vs.num, len(vs.sources), held.Load())
	}
}

// Those that come and go behind one that stays are not remembered.
func TestWhoIsGoneIsForgotten(t *testing.T) {
	vs := newVisitors()
	first := &visitor{}
	vs.enter(first, host(0))
	for i := range 10_000 {
		v := &visitor{}
		vs.enter(v, host(i%2))
		vs.leave(v)
		if n := max(cap(vs.queue), cap(vs.sources[host(0)].queue)); n > 100 {
			t.Fatalf("after %d visitors there is room for %d, of whom one is there", i+1, n)
		}
	}
	if got := vs.next(); got != first || vs.oldest() != first {
		t.Errorf("visitor %v is the oldest", got)
	}
	vs.leave(first)
}

// guests are what a lobby lets in and turns away.
type guests struct {
	mu      sync.Mutex
	refused map[error]int
	in      chan string // first words
}

var errWrong = errors.New("wrong word")

// open is a lobby that wants to hear "hello", behind a driver of each kind.
func open(t *testing.T, network, addr string, c Config, hidden bool) (*Lobby, *guests, net.Addr) {
	t.Helper()
	ln, err := net.Listen(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	g := &guests{refused: map[error]int{}, in: make(chan string, 1000)}
	c.Judge = func(said []byte) (int, error) {
		if n := len(said); string(said) != "hello"[:min(n, 5)] {
			return 0, errWrong
		} else if n < 5 {
			return 5, nil
		}
		return 0, nil
	}
	c.Enter = func(nc net.Conn, _ Source, said []byte) {
		io.WriteString(nc, "welcome")
		nc.Close()
		g.in <- string(said)
	}
	c.Refuse = func(_ Source, why error) {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.refused[why]++
	}
	at := ln.Addr()
	if hidden {
		ln = struct{ net.Listener }{ln}
	}
	l := New(ln, c)
	t.Cleanup(func() { l.Close() })
	return l, g, at
}

func (g *guests) num(why error) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.refused[why]
}

// eachDriver runs f over TCP and unix, with both drivers.
func eachDriver(t *testing.T, f func(t *testing.T, network, addr string, hidden bool)) {
	for _, network := range []string{"tcp", "unix"} {
		for _, hidden := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, hidden %v", network, hidden), func(t *testing.T) {
				addr := "127.0.0.1:0"
				if network == "unix" {
					addr = t.TempDir() + "/s"
				}
				f(t, network, addr, hidden)
			})
		}
	}
}

func connect(t *testing.T, at net.Addr) net.Conn {
	t.Helper()
	nc, err := net.Dial(at.Network(), at.String())
	if err != nil {
		t.Fatal(err)
	}
	nc.SetDeadline(time.Now().Add(patience))
	t.Cleanup(func() { nc.Close() })
	return nc
}

// Words may come in any pieces; who says them gets in, the others are turned away for what they are.
func TestFirstWords(t *testing.T) {
	eachDriver(t, func(t *testing.T, network, addr string, hidden bool) {
		_, g, at := open(t, network, addr, Config{Patience: time.Second / 4}, hidden)
		for _, pieces := range [][]string{{"hello"}, {"h", "ello"}, {"h", "e", "l", "l", "o"}} {
			nc := connect(t, at)
			for _, p := range pieces {
				io.WriteString(nc, p)
				time.Sleep(time.Millisecond)
			}
			if answer, err := io.ReadAll(nc); string(answer) != "welcome" || err != nil {
				t.Errorf("%q: %q, %v", pieces, answer, err)
			}
			if said := <-g.in; said != "hello" {
				t.Errorf("%q: heard as %q", pieces, said)
			}
		}
		for _, c := range []struct {
			said string
			end  bool
			why  error
		}{{"help", false, errWrong}, {"x", false, errWrong}, {"hell", true, ErrCut}, {"hell", false, ErrSlow}, {"", true, ErrSilent}, {"", false, ErrSilent}} {
			before := g.num(c.why)
			nc := connect(t, at)
			io.WriteString(nc, c.said)
			if c.end {
				nc.(interface{ CloseWrite() error }).CloseWrite()
			}
			answer, err := io.ReadAll(nc)
			if len(answer) > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%q: %q, %v", c.said, answer, err)
			}
			if c.why == errWrong && err != nil {
				t.Errorf("%q: %v, want an end: it was heard and refused", c.said, err)
			}
			if c.why != errWrong && network == "tcp" && !hidden && !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("%q: %v, want a reset", c.said, err)
			}
			if g.num(c.why) != before+1 {
				t.Errorf("%q: refused %v, want one more for %v", c.said, g.refused, c.why)
			}
		}
	})
}

// However many say nothing, whoever says the word gets in, and no more are held than may be.
func TestSilentOnesMakeRoom(t *testing.T) {
	eachDriver(t, func(t *testing.T, network, addr string, hidden bool) {
		_, g, at := open(t, network, addr, Config{Patience: time.Hour, Most: 5}, hidden)
		var silent []net.Conn
		for range 50 {
			silent = append(silent, connect(t, at))
		}
		for range 5 {
			nc := connect(t, at)
			io.WriteString(nc, "hello")
			if answer, err := io.ReadAll(nc); string(answer) != "welcome" || err != nil {
				t.Errorf("%q, %v", answer, err)
			}
		}
		for _, nc := range silent[:40] {
			if n, err := nc.Read(make([]byte, 1)); n > 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatalf("read %d bytes, %v; want the connection closed", n, err)
			}
		}
		if n := g.num(ErrCrowded); n < 45 {
			t.Errorf("%d had to go, want 45 at least", n)
		}
	})
}

// The end of a lobby ends who is in it.
func TestCloseTurnsOut(t *testing.T) {
	eachDriver(t, func(t *testing.T, network, addr string, hidden bool) {
		l, g, at := open(t, network, addr, Config{Patience: time.Hour}, hidden)
		nc := connect(t, at)
		io.WriteString(nc, "hello")
		<-g.in // so that it has begun
		silent := connect(t, at)
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if err := l.Close(); err != nil {
			t.Error("second Close:", err)
		}
		if n, err := silent.Read(make([]byte, 1)); n > 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%d bytes, %v", n, err)
		}
		if _, err := net.Dial(at.Network(), at.String()); err == nil {
			t.Error("it still listens")
		}
	})
}

func TestSources(t *testing.T) {
	for _, c := range []struct {
		a, b string
		same bool
	}{
		{"10.0.0.1", "10.0.0.2", false}, {"10.0.0.1", "::ffff:10.0.0.1", true},
		{"2001:db8::1", "2001:db8::2:0:0:1", true}, {"2001:db8::1", "2001:db8:0:1::1", false},
		{"fe80::1%eth0", "fe80::2%eth0", false}, {"::1", "::2", false},
	} {
		if same := Host(netip.MustParseAddr(c.a)) == Host(netip.MustParseAddr(c.b)); same != c.same {
			t.Errorf("%s and %s: same %v", c.a, c.b, same)
		}
	}
	if s := User(1000).String(); s != "user 1000 of this host" {
		t.Error(s)
	}
}

// A listener of those that speak gives them with all that they have said, and none of the silent
// ones, however many there are and however long they have been there.
func TestSpeaking(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var known atomic.Bool
	l := Speaking(ln, Forever, func(peer, here net.Addr) bool {
		if here.String() != ln.Addr().String() || !peer.(*net.TCPAddr).IP.IsLoopback() {
			t.Errorf("from %v to %v", peer, here)
		}
		return known.Load()
	})
	unknown := connect(t, l.Addr()) // which is given at once
	got, err := l.Accept()
	if err != nil || got.RemoteAddr().String() != unknown.LocalAddr().String() {
		t.Fatalf("%v, %v", got, err)
	}
	got.Close()
	known.Store(true)
	for range 100 {
		connect(t, l.Addr())
	}
	for _, said := range []string{"a", "hello"} {
		nc := connect(t, l.Addr())
		io.WriteString(nc, said)
		got, err := l.Accept()
		for runtime.GOOS != "linux" && err == nil && got.RemoteAddr().String() != nc.LocalAddr().String() {
			got.Close()
			got, err = l.Accept()
		}
		if err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, len(said))
		if _, err := io.ReadFull(got, buf); err != nil || string(buf) != said {
			t.Errorf("%q, %v; want %q", buf, err, said)
		}
		got.Close()
	}
	silent := connect(t, l.Addr())
	if runtime.GOOS == "linux" {
		io.WriteString(connect(t, l.Addr()), "after") // who comes then has been taken before
		if got, err = l.Accept(); err != nil {
			t.Fatal(err)
		}
		got.Close()
		Deaf(l)
		if _, err := net.Dial("tcp", l.Addr().String()); err == nil {
			t.Error("it still listens")
		}
		io.WriteString(silent, "late")
		if got, err := l.Accept(); err != nil || got.RemoteAddr().String() != silent.LocalAddr().String() {
			t.Errorf("%v, %v", got, err)
		} else {
			got.Close()
		}
	}
	ended := make(chan error)
	go func() {
		_, err := l.Accept()
		ended <- err
	}()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept ends with %v", err)
	}
}
