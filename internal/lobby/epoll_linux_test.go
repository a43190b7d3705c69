// SPDX-License-Identifier: Apache-2.0

package lobby

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"
)

// Who says the word when the process has no descriptor left gets in, for one that has said
// nothing goes.
func TestLastDescriptor(t *testing.T) {
	_, g, at := open(t, "tcp", "127.0.0.1:0", Config{Patience: time.Hour}, false)
	var visitors []net.Conn
	for range calm + 10 { // the last ones are taken from the system itself
		visitors = append(visitors, connect(t, at))
	}
	io.WriteString(visitors[0], "hello")
	<-g.in // so that all have come in
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 4 * calm, Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	defer syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit)
	for {
		f, err := os.Open(os.DevNull)
		if err != nil {
			if !errors.Is(err, syscall.EMFILE) {
				t.Fatal(err)
			}
			break
		}
		defer f.Close()
	}
	last := visitors[len(visitors)-1]
	io.WriteString(last, "hello")
	if answer, err := io.ReadAll(last); string(answer) != "welcome" || err != nil {
		t.Errorf("%q, %v; want a welcome", answer, err)
	}
	if n := g.num(ErrCrowded); n == 0 {
		t.Error("nobody has gone")
	}
}

// However the lobbies of a process fill up one after the other, they hold no more together
// than there is room for, and one that had all of it gives the others their share.
func TestLobbiesShareTheRoom(t *testing.T) {
	const most = 40
	defer func(whole func() int) { room = whole }(room)
	room = func() int { return most }
	var at [2]net.Addr
	var guests [2]*guests
	for i := range at {
		_, guests[i], at[i] = open(t, "tcp", "127.0.0.1:0", Config{Patience: time.Hour}, false)
	}
	fill := func(i, n int) {
		for range n {
			connect(t, at[i])
		}
		nc := connect(t, at[i])
		io.WriteString(nc, "hello") // who comes then has been taken before
		if answer, err := io.ReadAll(nc); string(answer) != "welcome" || err != nil {
			t.Errorf("%q, %v", answer, err)
		}
	}
	fill(0, 2*most)
	fill(1, most)
	fill(0, 2*most)
	if n := held.Load(); n > most+2 {
		t.Errorf("the lobbies hold %d, want %d", n, most)
	}
}
