// SPDX-License-Identifier: Apache-2.0

//go:build unix && !linux

package launch

import "syscall"

// cgroup does nothing on systems without control groups.
type cgroup struct{}

func cgroupPath(string) string  { return "" }
func openCgroup(string) *cgroup { return nil }

func (c *cgroup) join(*syscall.SysProcAttr) {}
func (c *cgroup) close()                    {}
