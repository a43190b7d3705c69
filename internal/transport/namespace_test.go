// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/internal/envvar"
)

// namespaceArg makes the test binary a process on a machine of its own: a
// network of one interface, no name server, a host name that nobody knows.
const namespaceArg = "transport-namespace"

// lonelyMachine makes it, and there runs the command that follows.
const lonelyMachine = `set -e
hostname nobody-knows.invalid
ip link set lo up
ip link add c0 type veth peer name c1
ip addr add 10.99.0.3/24 dev c0
ip link set c0 up
ip link set c1 up
ip route add 10.98.0.0/16 via 10.99.0.1
exec "$@"`

// runNamespace is such a process's main. It prints one line for each thing
// that worked.
func runNamespace() error {
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, err := net.DefaultResolver.LookupHost(ctx, name); err == nil {
		return fmt.Errorf("%s resolves", name)
	}
	for _, c := range []struct{ variable, master string }{
		{"", "10.98.0.1:29500"}, {"", "127.0.0.1:29500"}, {"", "10.99.0.3:29500"},
		{"c0", name + ":29500"}, {"10.99.0.0/16", name + ":29500"}, {"lo", "10.98.0.1:29500"},
	} {
		os.Setenv(string(envvar.Interface), c.variable)
		choice, err := ChooseInterface(ctx, c.master)
		if err != nil {
			return err
		}
		token := NewToken()
		p, err := Listen(net.JoinHostPort(choice.Host, "0"), token)
		if err != nil {
			return err
		}
		p.Handle("test", func(c *Conn) { c.Close() })
		conn, err := Dial(ctx, p.Addr(), "test", token, WithTLS(true))
		if err != nil {
			return err
		}
		conn.Close()
		p.Close()
		fmt.Println(choice)
	}
	for addr, leaves := range map[string]bool{"10.98.0.1:29500": true, "10.99.0.1:29500": true, "10.99.0.3:29500": false, "127.0.0.1:29500": false, "unix:x": false, name + ":29500": true} {
		if LeavesHost(ctx, addr) != leaves {
			return fmt.Errorf("that what goes to %s leaves the host is %v, want %v", addr, !leaves, leaves)
		}
	}
	os.Setenv(string(envvar.Interface), "eth9")
	_, err = ChooseInterface(ctx, "10.98.0.1:29500")
	fmt.Println(err)
	return nil
}

// On a machine whose host name does not resolve the interface is found.
func TestHostNameThatDoesNotResolve(t *testing.T) {
	for _, tool := range []string{"ip", "unshare", "hostname"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(err)
		}
	}
	args := []string{"--net", "--uts", "sh", "-c", lonelyMachine, "sh", os.Args[0], namespaceArg}
	if os.Geteuid() != 0 {
		args = append([]string{"--map-root-user"}, args...)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "unshare", args...)
	cmd.WaitDelay = time.Second
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	if err := cmd.Run(); err != nil {
		if out.Len() == 0 && !strings.HasPrefix(problems.String(), failed) {
			t.Skip("no network of its own:", problems.String())
		}
		t.Fatalf("%v: %s%s", err, out.String(), problems.String())
	}
	want := `c0 10.99.0.3 (route to 10.98.0.1:29500)
lo 127.0.0.1 (route to 127.0.0.1:29500)
c0 10.99.0.3 (route to 10.99.0.3:29500)
c0 10.99.0.3 (COHORT_INTERFACE=c0)
c0 10.99.0.3 (COHORT_INTERFACE=10.99.0.0/16)
lo 127.0.0.1 (COHORT_INTERFACE=lo)
environment variable COHORT_INTERFACE is "eth9": want the name, an IP address or a network (CIDR) of one of lo (127.0.0.1), `
	got := strings.Split(out.String(), "\n")
	for i, line := range strings.Split(want, "\n") {
		if i >= len(got) || !strings.HasPrefix(got[i], line) {
			t.Errorf("line %d of\n%swant %s", i+1, out.String(), line)
		}
	}
}
