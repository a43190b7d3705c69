// SPDX-License-Identifier: Apache-2.0

//go:build unix && !linux

package launch

// tty is the terminal that controls this process; here its modes are left to the shell.
type tty struct{}

func openTTY() *tty    { return nil }
func (*tty) leave()    {}
func (*tty) enter()    {}
func (*tty) has() bool { return false }
