// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"flag"
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// patience bounds what should take no time; reaching it fails the test.
const patience = 20 * time.Second

// failed begins what a process that a test has started says before it fails.
const failed = "failed:"

func TestMain(m *testing.M) {
	_ = flag.Set("rapid.seed", "1") // another by the flag, 0 for a drawn one
	roles := map[string]func() error{
		namespaceArg: runNamespace,
		peerArg:      func() error { return runPeer(os.Args[2]) },
		sharedArg:    func() error { return runShared(os.Args[2], os.Args[3]) },
	}
	if len(os.Args) > 1 && roles[os.Args[1]] != nil {
		if err := roles[os.Args[1]](); err != nil {
			fmt.Fprintln(os.Stderr, failed, err)
			os.Exit(1)
		}
		return
	}
	before := openFiles()
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, "goroutines left behind:", err)
			code = 1
		}
		// The runtime opens a poller's descriptors with the first socket and keeps them.
		if after := openFiles(); after > before+3 {
			fmt.Fprintf(os.Stderr, "%d files open before the tests, %d after\n", before, after)
			code = 1
		}
	}
	os.Exit(code)
}

// openFiles counts the process's descriptors, 0 where there is no list of them.
func openFiles() int {
	if runtime.GOOS != "linux" {
		return 0
	}
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	return len(entries)
}

// link is a way to make a connection; tests run over all of them.
type link struct {
	name    string
	connect func(t testing.TB) (near, far *Conn)
}

var links = []link{
	{"tcp", func(t testing.TB) (*Conn, *Conn) { return connect(t, "127.0.0.1:0") }},
	{"unix", func(t testing.TB) (*Conn, *Conn) { return connect(t, "unix:") }},
	{"tls", func(t testing.TB) (*Conn, *Conn) { return connect(t, "127.0.0.1:0", WithTLS(true)) }},
	{"pipe", func(t testing.TB) (*Conn, *Conn) {
		near, far := Pipe("test")
		t.Cleanup(func() { near.Close(); far.Close() })
		return near, far
	}},
	{"shm", connectShared},
}

// connectShared makes a connection through shared memory.
func connectShared(t testing.TB) (near, far *Conn) {
	t.Helper()
	token := NewToken()
	p, err := Listen("unix:", token)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	accepted := make(chan *Conn, 1)
	p.Handle("test", func(c *Conn) {
		c, err := AcceptShared(ctx, c)
		if err != nil {
			t.Error(err)
		}
		accepted <- c
	})
	near, err = DialShared(ctx, p.Addr(), "test", token)
	if err != nil {
		t.Fatal(err)
	}
	far = <-accepted
	t.Cleanup(func() { near.Close(); far.Close(); p.Close() })
	return near, far
}

// eachLink runs f over every kind of connection that there is here.
func eachLink(t *testing.T, f func(t *testing.T, near, far *Conn)) {
	for _, l := range links {
		if l.name == "shm" && !SharedMemory {
			continue
		}
		t.Run(l.name, func(t *testing.T) {
			near, far := l.connect(t)
			by := time.Now().Add(patience)
			near.SetDeadline(by)
			far.SetDeadline(by)
			f(t, near, far)
		})
	}
}

// connect makes a connection through a Port, which ends with the test.
func connect(t testing.TB, addr string, options ...DialOption) (near, far *Conn) {
	t.Helper()
	token := NewToken()
	p, err := Listen(addr, token)
	if err != nil {
		t.Fatal(err)
	}
	accepted := make(chan *Conn, 1)
	p.Handle("test", func(c *Conn) { accepted <- c })
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	near, err = Dial(ctx, p.Addr(), "test", token, options...)
	if err != nil {
		t.Fatal(err)
	}
	far = <-accepted
	t.Cleanup(func() { near.Close(); far.Close(); p.Close() })
	return near, far
}
