// SPDX-License-Identifier: Apache-2.0

package launch

import "golang.org/x/sys/unix"

// tty is the terminal that controls this process, whose modes ranks may have changed: one
// that asks for a password, or draws. A nil tty does nothing.
type tty struct {
	fd    int
	shell *unix.Termios // as they were when this process had the terminal; nil: it has not had it
	job   *unix.Termios // as they were when the job was stopped; nil: it is not
}

// openTTY finds it among the standard streams, nil where none of them is.
func openTTY() *tty {
	for fd := range 3 {
		t := &tty{fd: fd}
		if _, err := unix.IoctlGetInt(t.fd, unix.TIOCGPGRP); err == nil {
			t.shell = t.modes()
			return t
		}
	}
	return nil
}

// has reports whether this process's group has the terminal.
func (t *tty) has() bool {
	if t == nil {
		return false
	}
	front, err := unix.IoctlGetInt(t.fd, unix.TIOCGPGRP)
	return err == nil && front == unix.Getpgrp()
}

// modes returns those of now, nil while another process group has the terminal: whoever
// changes them from the background is stopped, and what is there is a shell's own.
func (t *tty) modes() *unix.Termios {
	if !t.has() {
		return nil
	}
	modes, err := unix.IoctlGetTermios(t.fd, unix.TCGETS)
	if err != nil {
		return nil
	}
	return modes
}

// leave gives the terminal back as the shell had it, and remembers how the job did.
func (t *tty) leave() {
	if t == nil {
		return
	}
	now := t.modes()
	if now == nil || t.shell == nil {
		return
	}
	if *now != *t.shell {
		t.job = now
		_ = unix.IoctlSetTermios(t.fd, unix.TCSETSW, t.shell)
	}
}

// enter sets the modes that the job had, if it has the terminal now.
func (t *tty) enter() {
	if t == nil {
		return
	}
	now := t.modes()
	if now == nil {
		return
	}
	if t.job != nil {
		t.shell = now
		_ = unix.IoctlSetTermios(t.fd, unix.TCSETSW, t.job)
		t.job = nil
	} else if t.shell == nil {
		t.shell = now
	}
}
