// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// bindPort binds a socket to a port of all addresses, and fails if another socket is bound
// to the port at any address. The socket gets SO_REUSEADDR when it is bound. So it does not
// hinder a later socket with SO_REUSEADDR, because this one does not listen, but hinders all
// sockets without.
func bindPort(port int) (release func(), err error) {
	fd, err := bindAny(&unix.SockaddrInet6{Port: port}, unix.AF_INET6)
	if err != nil && err != unix.EADDRINUSE { // a machine without IPv6
		fd, err = bindAny(&unix.SockaddrInet4{Port: port}, unix.AF_INET)
	}
	if err != nil {
		return nil, os.NewSyscallError("bind", err)
	}
	return func() { _ = unix.Close(fd) }, nil
}

func bindAny(to unix.Sockaddr, family int) (fd int, err error) {
	fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if family == unix.AF_INET6 { // and IPv4
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 0)
	}
	if err == nil {
		err = unix.Bind(fd, to)
	}
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	}
	if err != nil {
		_ = unix.Close(fd)
	}
	return fd, err
}

// withoutForks calls f while this process starts no others. A process that is being started
// has copies of all sockets until its program runs: what f closes would stay open in it.
func withoutForks(f func() error) error {
	forkOnce()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return f()
}

// forkOnce lets package os make the fork that does not take ForkLock: before it starts or
// finds the first process, it forks once to learn whether the system has pidfds.
var forkOnce = sync.OnceFunc(func() {
	if self, err := os.FindProcess(os.Getpid()); err == nil {
		_ = self.Release()
	}
})
