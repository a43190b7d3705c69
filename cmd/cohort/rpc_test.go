// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/internal/transport"
	"github.com/cohort-ml/cohort/rpc"
)

// TestRPCShow asks an agent that is in the middle of a call, by its address and by its
// process.
func TestRPCShow(t *testing.T) {
	t.Setenv(string(envvar.Token), transport.NewToken().Text())
	t.Setenv(string(envvar.Transport), "")
	slow, quick := rpc.NewMethod[struct{}, struct{}]("test.slow"), rpc.NewMethod[int, int]("test.quick")
	in, out := make(chan bool), make(chan bool)
	a, err := rpc.Init(t.Context(), "alone", rpc.WithPeers([]rpc.PeerAddr{{Name: "alone", Addr: "127.0.0.1:0"}}),
		rpc.Serve(quick, func(_ context.Context, n int) (int, error) { return n, nil }),
		rpc.Serve(slow, func(context.Context, struct{}) (struct{}, error) {
			in <- true
			<-out
			return struct{}{}, nil
		}))
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	for i := range 3 {
		if _, err := quick.Call(t.Context(), a.Self(), i); err != nil {
			t.Fatal(err)
		}
	}
	f := slow.Async(t.Context(), a.Self(), struct{}{})
	<-in
	defer func() {
		close(out)
		_, _ = f.Wait(t.Context())
	}()
	show := func(args ...string) (stdout, stderr string, code int) {
		var o, e bytes.Buffer
		code = run(append([]string{"rpc", "show"}, args...), &o, &e)
		return o.String(), e.String(), code
	}
	text, said, code := show(a.Addr())
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, said)
	}
	for _, want := range []string{"agent alone (rank 0 of 1) at " + a.Addr(), "in flight: 2", "test.slow  answered to  alone", "test.slow  awaited from alone", "test.quick  alone  0          3", "0  alone  pipe"} {
		if !strings.Contains(strings.Join(strings.Fields(text), " "), strings.Join(strings.Fields(want), " ")) {
			t.Errorf("there is no %q in\n%s", want, text)
		}
	}
	text, said, code = show("--json", a.Addr(), a.Addr())
	var info rpc.DebugInfo
	if err := json.NewDecoder(strings.NewReader(text)).Decode(&info); code != 0 || err != nil || info.Agent != a.String() || len(info.InFlight) != 2 || len(info.Served) < 2 {
		t.Errorf("exit code %d, %v, %s: %+v", code, err, said, info)
	}
	for _, test := range []struct {
		args []string
		code int
		want string
	}{
		{nil, exitUsage, "needs the address of an agent"},
		{[]string{"--timeout", "50ms", "127.0.0.1:1"}, exitFailed, "127.0.0.1:1"},
		{[]string{"nowhere"}, exitFailed, "want host:port"},
	} {
		if _, said, code := show(test.args...); code != test.code || !strings.Contains(said, test.want) {
			t.Errorf("%v: exit code %d, want %d, says %q, want %q", test.args, code, test.code, said, test.want)
		}
	}

	if runtime.GOOS != "linux" {
		return
	}
	// The others of a host are found by sockets of their own.
	b, err := rpc.Init(t.Context(), "found", rpc.WithStore(store.NewMemory(), 0, 1))
	if err != nil {
		t.Fatal(err)
	}
	text, said, code = show("--pid", strconv.Itoa(os.Getpid()))
	if code != 0 || !strings.HasPrefix(text, "agent found (rank 0 of 1)") {
		t.Errorf("by its process: exit code %d, %s\n%s", code, said, text)
	}
	b.Close()
	// Those of WithPeers by whatever the process listens at: here somebody is silent, too.
	for _, network := range [][2]string{{"tcp", ":0"}, {"unix", filepath.Join(t.TempDir(), "silent")}} {
		l, err := net.Listen(network[0], network[1])
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
	}
	text, said, code = show("--pid", strconv.Itoa(os.Getpid()))
	if code != 0 || !strings.HasPrefix(text, "agent alone (rank 0 of 1)") || strings.Count(text, "agent ") != 1 {
		t.Errorf("by its port: exit code %d, %s\n%s", code, said, text)
	}
	none := exec.Command("sleep", "60")
	if err := none.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = none.Process.Kill()
		_ = none.Wait()
	}()
	if _, said, code := show("--pid", strconv.Itoa(none.Process.Pid)); code != exitFailed || !strings.Contains(said, "it listens nowhere") {
		t.Errorf("a process without agents: exit code %d, %s", code, said)
	}
	t.Setenv(string(envvar.Token), transport.NewToken().Text())
	if _, said, code := show(a.Addr()); code != exitFailed || !strings.Contains(said, "token") {
		t.Errorf("another token: exit code %d, %s", code, said)
	}
	if _, said, code := show("--timeout", "1s", "--pid", strconv.Itoa(os.Getpid())); code != exitFailed || !strings.Contains(said, a.Addr()) || !strings.Contains(said, "token") {
		t.Errorf("another token for a process: exit code %d, %s", code, said)
	}
}
