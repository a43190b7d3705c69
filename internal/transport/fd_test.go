// SPDX-License-Identifier: Apache-2.0

//go:build unix

package transport

import (
	"fmt"
	"io"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// newPipeFile returns a file to write to and a descriptor that reads it.
func newPipeFile(t *testing.T) (w *os.File, r *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	return w, r
}

// Descriptors arrive in order however far the buffered reader reads ahead.
func TestDescriptorsComeWithTheirFrames(t *testing.T) {
	near, far := connect(t, "unix:")
	const n = 10
	for i := range n {
		w, r := newPipeFile(t)
		fmt.Fprintf(w, "pipe %d", i)
		w.Close()
		if err := near.WriteFrame(1, []byte("before")); err != nil {
			t.Fatal(err)
		}
		if err := near.SendFD(2, int(r.Fd()), []byte{byte(i)}, []byte("with")); err != nil {
			t.Fatal(err)
		}
		r.Close()
	}
	near.WriteFrame(1, []byte("after"))
	for i := range n {
		if kind, p, err := far.ReadFrame(nil, 100); err != nil || kind != 1 || string(p) != "before" {
			t.Fatal(kind, p, err)
		}
		kind, p, err := far.ReadFrame(nil, 100)
		if err != nil || kind != 2 || p[0] != byte(i) || string(p[1:]) != "with" {
			t.Fatal(kind, p, err)
		}
		fd, err := far.RecvFD()
		if err != nil {
			t.Fatal(err)
		}
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("descriptor %d would leak into child processes: flags %d, %v", fd, flags, err)
		}
		f := os.NewFile(uintptr(fd), "received")
		got, err := io.ReadAll(f)
		f.Close()
		if want := fmt.Sprintf("pipe %d", i); err != nil || string(got) != want {
			t.Errorf("descriptor %d leads to %q, want %q: %v", i, got, want, err)
		}
	}
	if fd, err := far.RecvFD(); err == nil {
		t.Errorf("descriptor %d came from nowhere", fd)
	}
}

func TestDescriptorsThatNobodyTakesAreClosed(t *testing.T) {
	near, far := connect(t, "unix:")
	_, r := newPipeFile(t)
	before := openFiles()
	for range 5 {
		if err := near.SendFD(1, int(r.Fd())); err != nil {
			t.Fatal(err)
		}
	}
	for range 5 {
		if _, _, err := far.ReadFrame(nil, 10); err != nil {
			t.Fatal(err)
		}
	}
	far.Close()
	near.Close()
	if after := openFiles(); after > before {
		t.Errorf("%d files open, %d before", after, before)
	}
}

func TestFloodOfDescriptorsIsAnError(t *testing.T) {
	near, far := connect(t, "unix:")
	_, r := newPipeFile(t)
	for range maxQueuedFDs + 10 {
		if err := near.SendFD(1, int(r.Fd())); err != nil {
			break // the far side has closed
		}
	}
	near.Close()
	var err error
	for err == nil {
		_, _, err = far.ReadFrame(nil, 10)
	}
	if err == io.EOF {
		t.Error("all descriptors were kept")
	}
}

func TestDescriptorsNeedAUnixSocket(t *testing.T) {
	near, far := connect(t, "127.0.0.1:0")
	if err := near.SendFD(1, 0); err == nil {
		t.Error("a descriptor was sent over TCP")
	}
	if _, err := far.RecvFD(); err == nil {
		t.Error("a descriptor came over TCP")
	}
	if err := near.WriteFrame(3); err != nil { // the connection is unharmed
		t.Error(err)
	}
}

func TestBadDescriptor(t *testing.T) {
	near, _ := connect(t, "unix:")
	if err := near.SendFD(1, 1<<20); err == nil {
		t.Error("a descriptor that is not open was sent")
	}
}

func TestDescriptorsPassAFault(t *testing.T) {
	near, far := connect(t, "unix:")
	_, r := newPipeFile(t)
	f := Inject(near)
	Inject(far)
	if err := near.SendFD(1, int(r.Fd()), []byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, _, err := far.ReadFrame(nil, 10); err != nil {
		t.Fatal(err)
	}
	fd, err := far.RecvFD()
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(fd)
	f.Cut()
	if err := near.SendFD(1, int(r.Fd())); err == nil {
		t.Error("a descriptor passed a cut connection")
	}
}
