// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"net"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/internal/envvar"
)

// loopback returns the name of the loopback interface.
func loopback(t *testing.T) string {
	interfaces, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range interfaces {
		if i.Flags&net.FlagLoopback != 0 && i.Flags&net.FlagUp != 0 {
			return i.Name
		}
	}
	t.Skip("no loopback interface")
	return ""
}

func TestChosenHost(t *testing.T) {
	t.Setenv(string(envvar.Interface), "")
	if got, err := ChooseInterface(t.Context(), "127.0.0.1:29500"); err != nil || got.Host != "127.0.0.1" {
		t.Errorf("%q, %v", got, err)
	}
	for _, bad := range []string{"127.0.0.1", "unix:@x"} {
		if _, err := ChooseInterface(t.Context(), bad); err == nil || !strings.Contains(err.Error(), bad) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	t.Setenv(string(envvar.Interface), loopback(t))
	if got, err := ChooseInterface(t.Context(), "192.0.2.1:1"); err != nil || got.Host != "127.0.0.1" {
		t.Errorf("with COHORT_INTERFACE: %q, %v", got, err)
	}
	t.Setenv(string(envvar.Interface), "127.0.0.1")
	if got, err := ChooseInterface(t.Context(), "192.0.2.1:1"); err != nil || got.Host != "127.0.0.1" {
		t.Errorf("with an address in COHORT_INTERFACE: %q, %v", got, err)
	}
	for _, bad := range []string{"nosuch0", "192.0.2.77"} {
		t.Setenv(string(envvar.Interface), bad)
		_, err := ChooseInterface(t.Context(), "127.0.0.1:1")
		if err == nil || !strings.Contains(err.Error(), string(envvar.Interface)) || !strings.Contains(err.Error(), bad) || !strings.Contains(err.Error(), loopback(t)) {
			t.Errorf("%q: %v, want the name and what there is", bad, err)
		}
	}
}

func TestLocalHost(t *testing.T) {
	near, _ := connect(t, "127.0.0.1:0")
	if got, err := near.LocalHost(); err != nil || got != "127.0.0.1" {
		t.Errorf("%q, %v", got, err)
	}
	near, _ = connect(t, "unix:")
	if _, err := near.LocalHost(); err == nil {
		t.Error("a unix socket has an IP address")
	}
}
