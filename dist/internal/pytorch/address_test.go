// SPDX-License-Identifier: Apache-2.0

package pytorch

import (
	"net/netip"
	"testing"
)

// TestGlooFamily: a rank listens at an address of the family that PyTorch's ranks use, the
// one of the host's name, whatever the ranks' meeting point is reached by.
func TestGlooFamily(t *testing.T) {
	theirs := netip.MustParseAddr("127.0.1.1")
	for addr, want := range map[string]string{
		"127.0.0.1:29500": "127.0.0.1",
		"localhost:29500": "127.0.0.1", // ::1, too, on most systems
		"[::1]:29500":     "127.0.1.1",
		"no port":         "127.0.1.1",
	} {
		if a := inFamily(t.Context(), addr, theirs); a.String() != want {
			t.Errorf("%s: %v, want %s", addr, a, want)
		}
	}
	if a := inFamily(t.Context(), "127.0.0.1:29500", netip.IPv6Loopback()); a != netip.IPv6Loopback() {
		t.Errorf("127.0.0.1, and PyTorch's ranks use IPv6: %v", a)
	}
}

// TestGlooStoreAtLocalhost: a rank 0 that was told localhost serves those whom it was told
// to admit all the same; without them, only this host.
func TestGlooStoreAtLocalhost(t *testing.T) {
	for _, tc := range []struct {
		admitted []netip.Prefix
		addr     string
		want     string
	}{
		{nil, "localhost:29500", "localhost:29500"},
		{[]netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}, "localhost:29500", ":29500"},
		{[]netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}, "[::1]:29500", ":29500"},
		{nil, "192.0.2.1:29500", "192.0.2.1:29500"}, // what it is told, and fails
	} {
		j := &job{admitted: tc.admitted, place: place{addr: tc.addr}}
		if got := j.storeAddr(t.Context()); got != tc.want {
			t.Errorf("%s, admitting %v: the store is at %s, want %s", tc.addr, tc.admitted, got, tc.want)
		}
	}
}
