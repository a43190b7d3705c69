// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/internal/transport"
	"github.com/cohort-ml/cohort/rpc"
)

// agentsOfProcess finds the addresses of the agents of a process, and the token that
// the process was started with. An agent listens on a socket for its own host. If the
// process has no such socket, agentsOfProcess returns all addresses on which the
// process listens.
func agentsOfProcess(pid int) (addrs []string, token string, err error) {
	proc := fmt.Sprintf("/proc/%d", pid)
	open, err := filepath.Glob(filepath.Join(proc, "fd", "*"))
	if err != nil {
		return nil, "", err
	}
	environ, err := os.ReadFile(filepath.Join(proc, "environ"))
	if err != nil {
		return nil, "", err
	}
	inodes := map[string]bool{}
	for _, fd := range open {
		if at, err := os.Readlink(fd); err == nil { // else it has been closed
			if inode, ok := strings.CutPrefix(at, "socket:["); ok {
				inodes[strings.TrimSuffix(inode, "]")] = true
			}
		}
	}
	sockets, err := os.ReadFile(filepath.Join(proc, "net", "unix"))
	if err != nil {
		return nil, "", err
	}
	const listens = "00010000" // among the flags
	var others []string
	for line := range strings.Lines(string(sockets)) {
		f := strings.Fields(line) // address, references, protocol, flags, type, state, inode, name
		if len(f) == 8 && f[3] == listens && inodes[f[6]] {
			if addr := "unix:" + f[7]; strings.HasPrefix(addr, rpc.SocketPrefix) {
				addrs = append(addrs, addr)
			} else {
				others = append(others, addr)
			}
		}
	}
	if len(addrs) == 0 {
		addrs = others
		for _, family := range []string{"tcp", "tcp6"} {
			sockets, err := os.ReadFile(filepath.Join(proc, "net", family))
			if err != nil && !errors.Is(err, fs.ErrNotExist) { // a system without IPv6
				return nil, "", err
			}
			addrs = append(addrs, tcpListeners(string(sockets), inodes)...)
		}
	}
	if len(addrs) == 0 {
		return nil, "", errors.New("the process has no agent of package rpc: it listens nowhere")
	}
	file := ""
	for _, kv := range bytes.Split(environ, []byte{0}) {
		if text, ok := strings.CutPrefix(string(kv), envvar.Token.Assign("")); ok {
			return addrs, text, nil
		}
		if path, ok := strings.CutPrefix(string(kv), envvar.TokenFile.Assign("")); ok {
			file = path
		}
	}
	if file != "" {
		t, err := transport.ReadTokenFile(file)
		return addrs, t.Text(), err
	}
	return addrs, "", nil // the token may be that of this process
}

// tcpListeners returns the addresses of the listening sockets in sockets, the text of
// /proc/net/tcp or tcp6, that are among inodes.
func tcpListeners(sockets string, inodes map[string]bool) (addrs []string) {
	const listens = "0A" // the state
	for line := range strings.Lines(sockets) {
		f := strings.Fields(line) // number, local address, remote address, state, …, inode at 9
		if len(f) < 10 || f[3] != listens || !inodes[f[9]] {
			continue
		}
		ip, port, _ := strings.Cut(f[1], ":")
		n, err := strconv.ParseUint(port, 16, 16)
		raw, ipErr := hex.DecodeString(ip)
		if err != nil || ipErr != nil || len(raw)%4 != 0 {
			continue
		}
		for w := raw; len(w) > 0; w = w[4:] { // words of the host's byte order, in hexadecimal
			binary.NativeEndian.PutUint32(w, binary.BigEndian.Uint32(w))
		}
		addr, ok := netip.AddrFromSlice(raw)
		if !ok {
			continue
		}
		switch addr = addr.Unmap(); addr {
		case netip.IPv4Unspecified():
			addr = netip.AddrFrom4([4]byte{127, 0, 0, 1})
		case netip.IPv6Unspecified():
			addr = netip.IPv6Loopback()
		}
		addrs = append(addrs, netip.AddrPortFrom(addr, uint16(n)).String())
	}
	return addrs
}
