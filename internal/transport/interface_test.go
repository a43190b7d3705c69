// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/internal/envvar"
)

// machine is an imagined one.
func machine() []networkInterface {
	f := func(name string, up bool, addrs ...string) networkInterface {
		out := networkInterface{name: name, up: up}
		for _, a := range addrs {
			out.addrs = append(out.addrs, netip.MustParsePrefix(a))
		}
		return out
	}
	return []networkInterface{
		f("lo", true, "127.0.0.1/8", "::1/128"),
		f("eth0", true, "10.0.0.3/24", "2001:db8::3/64", "fe80::3/64"),
		f("ib0", true, "fe80::5/64"),
		f("eth1", false, "10.0.1.3/24"),
		f("bond0", true),
	}
}

func TestPickInterface(t *testing.T) {
	for wanted, want := range map[string]string{
		"eth0":            "eth0 10.0.0.3",
		"10.0.0.3":        "eth0 10.0.0.3",
		"2001:db8::3":     "eth0 2001:db8::3",
		"10.0.0.0/16":     "eth0 10.0.0.3",
		"10.0.0.77/24":    "eth0 10.0.0.3",
		"2001:db8::/32":   "eth0 2001:db8::3",
		"ib0":             "ib0 fe80::5%ib0",
		"fe80::5":         "ib0 fe80::5%ib0",
		"fe80::5%ib0":     "ib0 fe80::5%ib0",
		"lo":              "lo 127.0.0.1",
		"::ffff:10.0.0.3": "eth0 10.0.0.3",
	} {
		c, err := pick(wanted, machine())
		if text := want + " (COHORT_INTERFACE=" + wanted + ")"; err != nil || c.String() != text {
			t.Errorf("%s: %v, %v; want %s", wanted, c, err, text)
		}
	}
	for wanted, why := range map[string]string{
		"eth7":        "no interface has",
		"ETH0":        "no interface has",
		"10.0.0.4":    "no interface has",
		"10.9.0.0/16": "no interface has",
		"fe80::5%lo":  "no interface has",
		"eth0/24":     "no interface has",
		"eth1":        "is down",
		"10.0.1.3":    "eth1 is down",
		"bond0":       "no IP address",
	} {
		_, err := pick(wanted, machine())
		var e *envvar.Error
		if !errors.As(err, &e) || e.Var != envvar.Interface || e.Value != wanted || !strings.Contains(err.Error(), why) ||
			!strings.Contains(err.Error(), "lo (127.0.0.1), eth0 (10.0.0.3), ib0 (fe80::5%ib0)") {
			t.Errorf("%s: %v; want the variable, what there is, and %q", wanted, err, why)
		}
	}
}

// FuzzPickInterface: whatever the variable holds, what is picked is there.
func FuzzPickInterface(f *testing.F) {
	for _, seed := range []string{"eth0", "10.0.0.3", "10.0.0.0/8", "::/0", "fe80::5%ib0", "::ffff:10.0.0.3/120", ""} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, wanted string) {
		c, err := pick(wanted, machine())
		if err != nil {
			return
		}
		for _, i := range machine() {
			for _, a := range i.addrs {
				if i.up && i.name == c.Interface && i.host(a) == c.Host {
					return
				}
			}
		}
		t.Errorf("%q: %v is not there", wanted, c)
	})
}

func TestChooseInterface(t *testing.T) {
	t.Setenv(string(envvar.Interface), "")
	c, err := ChooseInterface(t.Context(), "127.0.0.1:29500")
	if want := loopback(t) + " 127.0.0.1 (route to 127.0.0.1:29500)"; err != nil || c.String() != want {
		t.Errorf("%v, %v; want %s", c, err, want)
	}
	if _, err := ChooseInterface(t.Context(), "no-such-host.invalid:1"); err == nil || !strings.Contains(err.Error(), string(envvar.Interface)) {
		t.Errorf("a master that does not resolve: %v, want what to set", err)
	}
}
