// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// TestAbandonedSocket: the socket of a process that was killed is taken over, one on
// which somebody listens is not, nor is what is no socket.
func TestAbandonedSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	killed, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	killed.SetUnlinkOnClose(false)
	killed.Close()
	p, err := Listen("unix:"+path, NewToken())
	if err != nil {
		t.Fatalf("the socket of a process that has gone: %v", err)
	}
	defer p.Close()
	if _, err := Listen("unix:"+path, NewToken()); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a socket on which somebody listens: %v", err)
	}
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen("unix:"+file, NewToken()); err == nil {
		t.Error("a file was taken for a socket")
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "mine" {
		t.Errorf("the file has %q, %v", b, err)
	}
}
