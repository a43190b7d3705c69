// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"errors"
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

// TestMasterPort: rank 0 can listen at the port that the other nodes are told, and nobody
// else can take this port until the next round has another one.
func TestMasterPort(t *testing.T) {
	port := masterPort{addr: "127.0.0.1"}
	defer port.release()
	for range 2 {
		n := port.next()
		if n == 0 || n != port.held.Port() {
			t.Fatalf("port %d of %+v", n, port.held)
		}
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		err = unix.Bind(fd, &unix.SockaddrInet4{Port: n})
		_ = unix.Close(fd)
		if !errors.Is(err, unix.EADDRINUSE) {
			t.Errorf("a launcher that chooses the same port: %v", err)
		}
		l, err := net.Listen("tcp", port.held.Addr())
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
	port.addr = "192.0.2.1"
	if n := port.next(); n != 0 || port.held != nil {
		t.Errorf("an address of another machine: port %d, %+v is held", n, port.held)
	}
}
