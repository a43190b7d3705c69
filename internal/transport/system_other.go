// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package transport

// recvFlags is empty where the system cannot mark descriptors as it receives
// them; they are marked right after.
const recvFlags = 0

// abstractSockets says that unix sockets are files here.
const abstractSockets = false
