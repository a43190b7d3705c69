// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"slices"
	"testing"
)

// TestTCPListeners reads what the kernel says of sockets, of which some listen.
func TestTCPListeners(t *testing.T) {
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		t.Skip("the addresses below are those of a little-endian host")
	}
	const sockets = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 11 1 0 100 0 0 10 0
   1: 00000000:0FA0 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 12 1 0 100 0 0 10 0
   2: 0100007F:1F91 0100007F:1F90 01 00000000:00000000 00:00000000 00000000  1000        0 13 1 0 100 0 0 10 0
   3: 0100007F:1F92 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 99 1 0 100 0 0 10 0
   4: 00000000000000000000000000000000:0FA1 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 14 1 0 100 0 0 10 0
   5: 0000000000000000FFFF000002004D0A:0FA2 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 15 1 0 100 0 0 10 0
   6: B80D0120000000000000000001000000:0FA3 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 16 1 0 100 0 0 10 0
   7: 0100:0FA4 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 17 1 0 100 0 0 10 0
`
	mine := map[string]bool{"11": true, "12": true, "13": true, "14": true, "15": true, "16": true, "17": true}
	want := []string{"127.0.0.1:8080", "127.0.0.1:4000", "[::1]:4001", "10.77.0.2:4002", "[2001:db8::1]:4003"}
	if got := tcpListeners(sockets, mine); !slices.Equal(got, want) {
		t.Errorf("listeners %v, want %v", got, want)
	}
}
