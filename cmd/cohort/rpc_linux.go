// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/internal/transport"
	"github.com/cohort-ml/cohort/rpc"
)

// agentsOfProcess finds the agents that a process has, by the sockets at which it
// listens for its host, and the token that it was started with.
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
	for line := range strings.Lines(string(sockets)) {
		f := strings.Fields(line) // address, references, protocol, flags, type, state, inode, name
		if len(f) == 8 && f[3] == listens && inodes[f[6]] && strings.HasPrefix("unix:"+f[7], rpc.SocketPrefix) {
			addrs = append(addrs, "unix:"+f[7])
		}
	}
	if len(addrs) == 0 {
		return nil, "", errors.New("the process has no agent of package rpc with a unix socket: give the address of a TCP port")
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
	return addrs, "", nil // it may be that of this process
}
