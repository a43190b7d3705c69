// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"flag"
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cohort-ml/cohort/internal/transport"
)

// patience bounds what should take no time; reaching it fails the test.
const patience = 20 * time.Second

func TestMain(m *testing.M) {
	_ = flag.Set("rapid.seed", "1") // another by the flag, 0 for a drawn one
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

// host is a port with a store on it, which ends with the test.
type host struct {
	port  *transport.Port
	token transport.Token
	srv   *Server
	mem   *Memory
}

func newHost(t testing.TB, addr string) *host {
	t.Helper()
	h := &host{token: transport.NewToken(), mem: NewMemory()}
	port, err := transport.Listen(addr, h.token)
	if err != nil {
		t.Fatal(err)
	}
	h.port = port
	h.srv = Serve(port, h.mem)
	t.Cleanup(func() { h.srv.Close(); port.Close() })
	return h
}

// client connects one client more, which ends with the test.
func (h *host) client(t testing.TB) *Client {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := Connect(ctx, h.port.Addr(), h.token, transport.EncryptControl)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// serve makes a server and one client of it.
func serve(t testing.TB, addr string) *Client { return newHost(t, addr).client(t) }
