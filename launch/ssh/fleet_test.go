// SPDX-License-Identifier: Apache-2.0

package ssh

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// fakeSSH is an ssh whose hosts greet, read their order, and end as their names say.
const fakeSSH = `#!/bin/sh
for word; do host=$before; before=$word; done
echo 'the profile says hello'
echo "cohort-host-agent {\"protocol\":2,\"version\":\"v\",\"machine\":\"$host\"}"
read order
mark=$(echo "$order" | sed 's/.*"end":"\([^"]*\)".*/\1/')
echo "output of $host, $mark"
case $host in
told255) echo "$mark 255"; exit 255 ;;
told0) printf 'part\n%s 0\n' "$mark"; exit 255 ;;
told7) echo "$mark 7"; exit 7 ;;
crashed) echo 'panic: x' >&2; exit 3 ;;
cut) echo 'client_loop: send disconnect: Broken pipe' >&2; exit 255 ;;
mute) exit 0 ;;
strange) echo "$mark x" ; exit 255 ;;
esac
`

// TestEnds: a command that ends with 255 has failed, and a connection that ends is lost, though
// ssh ends with 255 both times.
func TestEnds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ssh")
	if err := os.WriteFile(path, []byte(fakeSSH), 0o700); err != nil {
		t.Fatal(err)
	}
	want := []struct {
		host string
		code int
		lost string
	}{
		{"told255", 255, ""}, {"told0", 0, ""}, {"told7", 7, ""}, {"crashed", 3, ""},
		{"cut", 255, "the connection has ended, or the agent there was killed (client_loop: send disconnect: Broken pipe)"},
		{"mute", 0, "has not said how its command ended"}, {"strange", 255, "the connection has ended"},
	}
	var out, errs bytes.Buffer
	o := Options{SSH: []string{path}, Version: "v", Stdout: &out, Stderr: &errs}
	for _, w := range want {
		o.Hosts = append(o.Hosts, Host{Name: w.host})
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	f, err := Connect(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	orders := make([]Order, len(want))
	for i := range orders {
		orders[i].Args = []string{"run"}
	}
	for i, r := range f.Run(ctx, orders, Terms{Grace: time.Minute}) {
		w := want[i]
		if r.Host != w.host || r.Code != w.code || (r.Lost == nil) != (w.lost == "") || r.Lost != nil && !strings.Contains(r.Lost.Error(), w.lost) {
			t.Errorf("%+v, want %+v", r, w)
		}
		if !strings.Contains(out.String(), "output of "+w.host+", cohort-end ") {
			t.Errorf("no output of %s in %q", w.host, out.String())
		}
	}
	for line := range strings.Lines(out.String()) {
		if strings.HasPrefix(line, "cohort-end") {
			t.Errorf("the line of the exit code is shown: %q", line)
		}
	}
}

// TestOrderComesFirst: a signal at once waits behind the order.
func TestOrderComesFirst(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ssh")
	script := strings.Replace(fakeSSH, "case $host in", "read signal\necho \"then $signal\"\ncase $host in", 1)
	if err := os.WriteFile(path, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	dial, end := context.WithTimeout(context.Background(), time.Minute)
	defer end()
	f, err := Connect(dial, Options{SSH: []string{path}, Version: "v", Hosts: []Host{{Name: "told0"}}, Stdout: &out, Stderr: &out})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	stopped, stop := context.WithCancel(context.Background())
	stop()
	// More than a pipe takes at once.
	r := f.Run(stopped, []Order{{Args: []string{strings.Repeat("x", 100<<10)}}}, Terms{Grace: time.Minute})
	if !r[0].OK() || !strings.Contains(out.String(), `then {"signal":"SIGTERM"}`) {
		t.Errorf("%+v, %.200q", r, out.String())
	}
}
