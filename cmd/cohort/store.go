// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/signal"
	"strings"
	"sync"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/internal/envvar"
)

// storeWires are the protocols that cohort store speaks.
var storeWires = []string{"pytorch", "cohort"}

func newStoreCommand() *cobra.Command {
	var listen, wire string
	var admit []string
	cmd := &cobra.Command{
		Use:   "store",
		Short: "Serve a key-value store to PyTorch or Cohort processes",
		Long: `Serve an empty key-value store until the command is interrupted.

With --wire pytorch, torch.distributed.TCPStore(host, port) connects to the store,
of PyTorch 1.13 and of 2.2 and later at the same time. PyTorch's protocol has no
authentication: processes on this host may use the store, and those on the hosts
that --admit names. With --wire cohort, clients prove that they know the token in
COHORT_TOKEN or COHORT_TOKEN_FILE (see cohort token), as store.Dial does.

The address is the last word of the first line that the command prints. With port
0, that is how to find the port.`,
		Example: `  cohort store --listen 127.0.0.1:29500
  cohort store --listen 10.0.0.1:29500 --admit 10.0.0.0/24`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			switch wire {
			case "pytorch":
				return servePyTorch(ctx, listen, admit, cmd.OutOrStdout(), cmd.ErrOrStderr())
			case "cohort":
				if len(admit) > 0 {
					return usageError{errors.New("--admit is for --wire pytorch: Cohort's clients show a token")}
				}
				return serveCohort(ctx, listen, cmd.OutOrStdout())
			}
			return usageError{fmt.Errorf("--wire is %q, want %s", wire, strings.Join(storeWires, " or "))}
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&listen, "listen", "127.0.0.1:29500", "`HOST:PORT` to serve at; port 0: any free port")
	fl.StringVar(&wire, "wire", "pytorch", "protocol to speak")
	fl.StringSliceVar(&admit, "admit", nil, "with --wire pytorch: `ADDRESSES` of other hosts that may use the store, such as 10.0.0.7 or 10.0.0.0/24")
	oneOf(fl, "wire", storeWires...)
	return cmd
}

// servePyTorch serves a store to PyTorch's processes until ctx ends.
func servePyTorch(ctx context.Context, listen string, admit []string, stdout, stderr io.Writer) error {
	var mu sync.Mutex
	opts := []store.PyTorchServerOption{store.WithRefusals(func(r *store.PyTorchRefusal) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintf(stderr, "cohort: %v\n", r)
	})}
	if len(admit) > 0 {
		admitted, err := admission(admit)
		if err != nil {
			return usageError{err}
		}
		opts = append(opts, store.WithAdmission(admitted))
	}
	s, err := store.ListenPyTorch(listen, opts...)
	if err != nil {
		return usageError{err}
	}
	defer s.Close()
	if _, err := fmt.Fprintf(stdout, "a store for PyTorch at %s\n", s.Addr()); err != nil {
		return err
	}
	mu.Lock()
	fmt.Fprintf(stderr, "cohort: %s\n", strings.TrimPrefix(s.Notice(), "store: "))
	mu.Unlock()
	<-ctx.Done()
	return nil
}

// admission returns a function that reports whether an address may use the store: one
// of this host, or one of the addresses and networks in admit.
func admission(admit []string) (func(netip.Addr) bool, error) {
	var nets []netip.Prefix
	for _, text := range admit {
		if addr, err := netip.ParseAddr(text); err == nil {
			addr = addr.Unmap()
			nets = append(nets, netip.PrefixFrom(addr, addr.BitLen()))
			continue
		}
		n, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("--admit %q: give IP addresses and networks such as 10.0.0.7 and 10.0.0.0/24", text)
		}
		nets = append(nets, n)
	}
	return func(peer netip.Addr) bool {
		for _, n := range nets {
			if n.Contains(peer) {
				return true
			}
		}
		return peer.IsLoopback() || isOwn(peer)
	}, nil
}

// isOwn reports whether an address is one of this host's.
func isOwn(peer netip.Addr) bool {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return false
	}
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok {
			if own, ok := netip.AddrFromSlice(n.IP); ok && own.Unmap() == peer {
				return true
			}
		}
	}
	return false
}

// serveCohort serves a store to those who know the token until ctx ends.
func serveCohort(ctx context.Context, listen string, stdout io.Writer) error {
	if !envvar.Token.IsSet() && !envvar.TokenFile.IsSet() {
		return usageError{errors.New("store: clients prove that they know a token, and there is none: export COHORT_TOKEN=$(cohort token), here and where the clients are")}
	}
	s, err := store.Listen(listen, "")
	if err != nil {
		return usageError{err}
	}
	defer s.Close()
	if _, err := fmt.Fprintf(stdout, "a store for Cohort at %s\n", s.Addr()); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}
