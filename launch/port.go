// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"errors"
	"fmt"
	"net"
	"syscall"

	"github.com/cohort-ml/cohort/internal/transport"
)

// masterPort returns the port at which rank 0 of an attempt listens: that of the
// configuration, or a port that nobody else can choose until release is called.
func (h *Host) masterPort() (port int, release func(), err error) {
	if h.cfg.MasterPort != 0 {
		return h.cfg.MasterPort, func() {}, nil
	}
	held, err := transport.HoldPort(h.cfg.MasterAddr)
	if err != nil {
		return 0, nil, &ConfigError{Field: "MasterAddr", Err: masterError(h.cfg.MasterAddr, 0, err)}
	}
	return held.Port(), held.Close, nil
}

// checkPort checks whether rank 0 will be able to listen at addr:port.
func checkPort(addr string, port int) error {
	return masterError(addr, port, transport.CanListen(addr, port))
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
