// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"syscall"
)

// Free ports are chosen below the range from which systems take the ports of outgoing
// connections (from 32768 on Linux, from 49152 elsewhere). So no connection of another
// program can take the port before rank 0 listens at it.
const (
	firstPort = 20000
	lastPort  = 32767
	portTries = 64
)

// FreePort returns a port at an address of this machine at which nobody listens.
func FreePort(addr string) (int, error) {
	var last error
	for range portTries {
		port := firstPort + rand.IntN(lastPort-firstPort+1)
		if last = tryPort(addr, port); last == nil {
			return port, nil
		}
		if !errors.Is(last, syscall.EADDRINUSE) {
			break
		}
	}
	return 0, masterError(addr, 0, last)
}

// checkPort checks whether rank 0 will be able to listen at addr:port.
func checkPort(addr string, port int) error {
	return masterError(addr, port, tryPort(addr, port))
}

func tryPort(addr string, port int) error {
	l, err := net.Listen("tcp", net.JoinHostPort(addr, strconv.Itoa(port)))
	if err != nil {
		return err
	}
	return l.Close()
}

func masterError(addr string, port int, err error) error {
	var dns *net.DNSError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("master port %d on %s is in use by another program: choose another port, or leave it out to get a free one (%w)", port, addr, err)
	case errors.Is(err, syscall.EADDRNOTAVAIL), errors.As(err, &dns):
		return fmt.Errorf("master address %s is not an address of this machine, where rank 0 runs: leave it out for 127.0.0.1 (%w)", addr, err)
	case errors.Is(err, syscall.EACCES):
		return fmt.Errorf("this user may not listen on master port %d of %s: choose a port above 1023 (%w)", port, addr, err)
	default:
		return fmt.Errorf("rank 0 cannot listen on master address %s port %d: %w", addr, port, limited(err))
	}
}
