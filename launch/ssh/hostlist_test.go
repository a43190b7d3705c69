// SPDX-License-Identifier: Apache-2.0

package ssh

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// show writes hosts as a list.
func show(hosts []Host) string {
	var words []string
	for _, h := range hosts {
		if h.Slots > 0 {
			h.Name += fmt.Sprintf("=%d", h.Slots)
		}
		words = append(words, h.Name)
	}
	return strings.Join(words, " ")
}

func TestParseHosts(t *testing.T) {
	for text, want := range map[string]string{
		"a,b:4":                      "a b=4",
		" a , me@b.example.com:2 ":   "a me@b.example.com=2",
		"n[08-11]:8":                 "n08=8 n09=8 n10=8 n11=8",
		"n[1,3-4]x[0-1],c":           "n1x0 n1x1 n3x0 n3x1 n4x0 n4x1 c",
		"10.0.0.1,10.0.0.2:2":        "10.0.0.1 10.0.0.2=2",
		"fe80::1%eth0,::2":           "fe80::1%eth0 ::2",
		"[::1]:4,me@[fe80::1%eth0]":  "::1=4 me@fe80::1%eth0",
		"a,a":                        "! host a is already there (entry a)",
		"me@a:2,you@A:3":             "! already there",
		"n[1-3],n2":                  "! host n2 is already there",
		"":                           "! entry 1 is empty",
		"a,,b":                       "! entry 2 is empty",
		"a:":                         "! no number of ranks",
		"a:0":                        "! no number of ranks",
		"a:22x":                      "! no number of ranks",
		"-oProxyCommand=sh":          "! no name of a host",
		"a b":                        "! no name of a host",
		"a;reboot":                   "! no name of a host",
		"me@-x":                      "! no name of a host",
		"n[1-":                       "! does not end",
		"n[4-1]":                     "! no range of numbers",
		"n[a-b]":                     "! no range of numbers",
		"n]":                         "! no list of hosts",
		"n[1-5000]":                  "! more than 4096 hosts",
		"n[1-999999999]":             "! more than 4096 hosts",
		"n[1-64][1-65]":              "! more than 4096 hosts",
		"n[00000000001]":             "! no range of numbers",
		"[::1]4":                     "! followed by a colon",
		strings.Repeat("a", 256):     "! no name of a host",
		"a[1-2]b[1-2]c[1-2]:2":       "a1b1c1=2 a1b1c2=2 a1b2c1=2 a1b2c2=2 a2b1c1=2 a2b1c2=2 a2b2c1=2 a2b2c2=2",
		"n[1-2]:2,[n1]":              "! no range of numbers",
		"user.name+x@host_1.a-b.c:9": "user.name+x@host_1.a-b.c=9",
	} {
		hosts, err := ParseHosts(text)
		bad, refused := strings.CutPrefix(want, "! ")
		switch {
		case refused && (err == nil || !strings.Contains(err.Error(), bad)):
			t.Errorf("%q: %s, %v; want an error with %q", text, show(hosts), err, bad)
		case !refused && (err != nil || show(hosts) != want):
			t.Errorf("%q: %s, %v; want %s", text, show(hosts), err, want)
		}
	}
}

func TestReadHostFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hosts")
	for text, want := range map[string]string{
		"# all\na slots=4 max_slots=8\n\nb:2 # the old one\nme@c\n": "a=4 b=2 me@c",
		"n[1-2] slots=3": "n1=3 n2=3",
		"\ufeffa slots = 4  max-slots =8\r\nme@b\tslots=2\r\n": "a=4 me@b=2",
		"gpu1\ngpu1\ngpu2\n":       "! line 2: host gpu1 is already there (" + path + " line 1): name each host once, with all its ranks, as in gpu1:4; if a line stands for a rank: sort " + path + " | uniq -c",
		"n1 4 all.q@n1 UNDEFINED":  `! line 1: "4" is unknown: give a host a line, as in "node01 slots=4"`,
		"n1 slots":                 "! no number of ranks",
		"n1 slots=2 user=bob":      `! "user=bob" is unknown`,
		"n1:2 binding=map=0":       `! "binding=map=0" is unknown`,
		"rank 0=n1 slot=1":         `! "0=n1" is unknown`,
		"[node]\nn1":               "! no range of numbers",
		"+n0":                      "! no name of a host",
		"a\nb\na:2":                "! line 3: host a is already there (" + path + " line 1)",
		"a slot=4":                 `! line 1: "slot=4" is unknown`,
		"a slots=x":                "! no number of ranks",
		"\n# nobody\n":             "! names no host",
		"a\x00b":                   "! no name of a host",
		strings.Repeat("#\n", 3e6): "! larger than 4 MiB",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		hosts, err := ReadHostFile(path)
		bad, refused := strings.CutPrefix(want, "! ")
		switch {
		case refused && (err == nil || !strings.Contains(err.Error(), bad)):
			t.Errorf("%q: %s, %v; want an error with %q", clip(text), show(hosts), err, bad)
		case !refused && (err != nil || show(hosts) != want):
			t.Errorf("%q: %s, %v; want %s", text, show(hosts), err, want)
		}
	}
}

func FuzzExpand(f *testing.F) {
	for _, s := range []string{"n[01-03,7],login", "a[1-2]b[3-4]", "[", "n[1-", "n[1-4096]", ",,"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		names, err := Expand(text)
		if err == nil && (len(names) == 0 || len(names) > MaxHosts) {
			t.Errorf("%q: %d names", text, len(names))
		}
		for _, n := range names {
			if n == "" {
				t.Errorf("%q: an empty name", text)
			}
		}
	})
}
