// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Another user of this host is closed at a unix socket whatever is said, and
// with the token too; the job's own user is not.
func TestOtherUserAtAUnixSocket(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can be somebody else")
	}
	p, token := newPort(t, "unix:", patience, 10)
	var reports ledger
	p.OnRefusal(reports.add)
	_, address, err := parseAddress(p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan []byte)
	go func() {
		// The thread alone becomes another user, and ends with this goroutine.
		runtime.LockOSThread()
		defer close(got)
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, 4711, 4711, 4711); errno != 0 {
			t.Error(errno)
			return
		}
		nc, err := net.Dial("unix", address)
		if err != nil {
			t.Error(err)
			return
		}
		defer nc.Close()
		nc.SetDeadline(time.Now().Add(patience))
		nc.Write(newHello(token, "echo"))
		answer, _ := io.ReadAll(nc)
		got <- answer
	}()
	if answer := <-got; len(answer) > 0 {
		t.Errorf("another user got %d bytes", len(answer))
	}
	<-got
	if r := reports.all(); len(r) != 1 || !errors.Is(r[0].Why, errOtherUser) || r[0].From[0] != "user 4711 of this host" {
		t.Errorf("reports %v", r)
	}
	mustEcho(t, p, token)
}
