// SPDX-License-Identifier: Apache-2.0

package launch

import "golang.org/x/sys/unix"

// tty is the terminal that controls this process. A rank may change its modes, for instance
// to ask for a password. A nil tty does nothing.
type tty struct {
	fd    int
	shell *unix.Termios // the modes of the shell; nil: this process has not had the terminal yet
	job   *unix.Termios // the modes of the job when it was stopped; nil: it is not stopped
}

// openTTY finds the terminal among the standard streams; nil if none of them is one.
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

// modes returns the present modes. It returns nil while another process group has the
// terminal: the modes are then those of a shell, and a background process that changes them
// is stopped.
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

// leave sets the modes of the shell, and remembers those of the job.
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

// enter sets the modes of the job, if it has the terminal now.
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
