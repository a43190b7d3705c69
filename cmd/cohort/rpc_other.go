// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package main

import "errors"

// agentsOfProcess is for systems with /proc.
func agentsOfProcess(int) (addrs []string, token string, err error) {
	return nil, "", errors.New("processes are looked into on Linux only: give the address of the agent")
}
