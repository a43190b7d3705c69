// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"net"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func init() { roles["taker"] = roleTaker }

// roleTaker takes the master's port as another launcher would that has chosen the same one,
// then listens there as rank 0 does, and fails in the first attempt.
func roleTaker(string) int {
	port, _ := strconv.Atoi(os.Getenv("MASTER_PORT"))
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}})
		_ = unix.Close(fd)
	}
	l, listening := net.Listen("tcp", net.JoinHostPort(os.Getenv("MASTER_ADDR"), os.Getenv("MASTER_PORT")))
	if listening == nil {
		_ = l.Close()
	}
	say("taken: %v, listening: %v", err, listening)
	if os.Getenv("TORCHELASTIC_RESTART_COUNT") == "0" {
		return 3
	}
	return 0
}

// TestMasterPortIsHeld: in every attempt, nobody else can take the port that the launcher
// has chosen, though rank 0 has not listened yet, and rank 0 can.
func TestMasterPortIsHeld(t *testing.T) {
	checkLeaks(t, func() {
		var out, errs output
		cfg := self(t, 1, "taker")
		cfg.Stdout, cfg.Stderr, cfg.MaxRestarts = &out, &errs, 1
		if err := Run(t.Context(), cfg); err != nil {
			t.Fatalf("%v\n%s", err, errs.String())
		}
		if n := strings.Count(out.String(), "taken: address already in use, listening: <nil>\n"); n != 2 {
			t.Errorf("in %d of 2 attempts the port was held:\n%s", n, out.String())
		}
	})
}
