// SPDX-License-Identifier: Apache-2.0

//go:build unix

package store

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cohort-ml/cohort/internal/transport"
)

// TestServerProcess is not a test but the server of TestTenThousandClients. It
// says where it is and with which token, and for each line that it reads what it uses.
func TestServerProcess(t *testing.T) {
	if os.Getenv("STORE_TEST_SERVER") == "" {
		t.Skip("runs inside TestTenThousandClients")
	}
	h := newHost(t, "127.0.0.1:0")
	fmt.Printf("\nAT %s %s\n", h.port.Addr(), h.token.Text())
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		goroutines, bytes := usage()
		fmt.Printf("\nUSES %d %d\n", goroutines, bytes)
	}
}

// usage returns the process's goroutines, and the memory that they and what
// they hold take.
func usage() (goroutines, bytes int) {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return runtime.NumGoroutine(), int(m.HeapAlloc + m.StackInuse)
}

// TestTenThousandClients connects ten thousand clients to one server, has all
// of them wait for a key at once, and counts what a client costs. With -short
// there are 500. It takes about 5 s on an idle machine.
func TestTenThousandClients(t *testing.T) {
	num := 10_000
	if testing.Short() {
		num = 500
	}
	// The other ends' descriptors are in the server's process.
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		t.Fatal(err)
	}
	if want := uint64(num + 200); files.Cur < want {
		files.Cur, files.Max = max(files.Max, want), max(files.Max, want)
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
			t.Skipf("%d open files are allowed, %d are needed, and more may not be asked for: %v", files.Cur, want, err)
		}
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	server := exec.Command(exe, "-test.run=^TestServerProcess$", "-test.timeout=5m")
	server.Env = append(os.Environ(), "STORE_TEST_SERVER=1")
	var errs bytes.Buffer
	server.Stderr = &errs
	ask, err := server.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := server.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		ask.Close()
		_, _ = io.Copy(io.Discard, out)
		if err := server.Wait(); err != nil {
			t.Errorf("the server: %v\n%s", err, errs.String())
		}
	}()
	lines := bufio.NewScanner(out)
	answer := func(format string, args ...any) {
		t.Helper()
		for lines.Scan() {
			if n, _ := fmt.Sscanf(lines.Text(), format, args...); n == len(args) {
				return
			}
		}
		t.Fatalf("the server said nothing like %q", format)
	}
	uses := func() (goroutines, bytes int) {
		t.Helper()
		fmt.Fprintln(ask)
		answer("USES %d %d", &goroutines, &bytes)
		return goroutines, bytes
	}
	var addr, text string
	answer("AT %s %s", &addr, &text)
	token, err := transport.ParseToken(text)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	serverGoroutines, serverBytes := uses()
	goroutines, bytes := usage()

	clients := make([]*Client, num)
	defer func() {
		for _, c := range clients {
			if c != nil {
				c.Close()
			}
		}
	}()
	each := func(what string, atOnce int, f func(i int) error) {
		t.Helper()
		began := time.Now()
		var wg sync.WaitGroup
		var mu sync.Mutex
		var all []error
		turns := make(chan struct{}, atOnce)
		for i := range clients {
			turns <- struct{}{}
			wg.Go(func() {
				if err := f(i); err != nil {
					mu.Lock()
					all = append(all, err)
					mu.Unlock()
				}
				<-turns
			})
		}
		wg.Wait()
		if len(all) > 0 {
			t.Fatalf("%s: %d of %d failed: %v", what, len(all), num, errors.Join(all[:min(3, len(all))]...))
		}
		t.Logf("%s: %v for %d clients", what, time.Since(began).Round(time.Millisecond), num)
	}
	each("connect", 64, func(i int) (err error) {
		clients[i], err = Connect(ctx, addr, token, transport.EncryptControl)
		return err
	})
	each("set", 64, func(i int) error { return clients[i].Set(ctx, strconv.Itoa(i), fmt.Append(nil, "value ", i)) })

	// All wait; the last to come lets them go.
	released := make(chan error, 1)
	go func() {
		for ctx.Err() == nil {
			if n, err := clients[0].Add(ctx, "waiting", 0); err != nil || int(n) == num {
				released <- errors.Join(err, clients[0].Set(ctx, "go", nil))
				return
			}
		}
		released <- ctx.Err()
	}()
	each("wait for one key", num, func(i int) error {
		if _, err := clients[i].Add(ctx, "waiting", 1); err != nil {
			return err
		}
		return clients[i].Wait(ctx, "go")
	})
	if err := <-released; err != nil {
		t.Fatal(err)
	}
	each("get the neighbour's", 64, func(i int) error {
		j := (i + 1) % num
		v, err := clients[i].Get(ctx, strconv.Itoa(j))
		if err == nil && string(v) != fmt.Sprint("value ", j) {
			err = fmt.Errorf("value %d is %q", j, v)
		}
		return err
	})

	// Goroutines that have answered, or been answered, may end a moment later.
	settled := func(uses func() (goroutines, bytes int), most int) (goroutines, bytes int) {
		for begun := time.Now(); ; time.Sleep(10 * time.Millisecond) {
			if goroutines, bytes = uses(); goroutines <= most || time.Since(begun) > 20*time.Second {
				return goroutines, bytes
			}
		}
	}
	g, b := settled(uses, serverGoroutines+num+10)
	perServer, perClient := (b-serverBytes)/num, 0
	t.Logf("the server has %.2f goroutines and %d bytes a client", float64(g-serverGoroutines)/float64(num), perServer)
	if g-serverGoroutines > num+10 || perServer > 32<<10 {
		t.Errorf("the server has %d goroutines and %d bytes for each of %d clients, want one and less than 32 KiB", g-serverGoroutines, perServer, num)
	}
	g, b = settled(usage, goroutines+num+10)
	perClient = (b - bytes) / num
	t.Logf("the clients have %.2f goroutines and %d bytes each", float64(g-goroutines)/float64(num), perClient)
	if g-goroutines > num+10 || perClient > 32<<10 {
		t.Errorf("the clients have %d goroutines and %d bytes each, want one and less than 32 KiB", g-goroutines, perClient)
	}
	each("close", 64, func(i int) error { return clients[i].Close() })
	if g, _ = settled(uses, serverGoroutines+5); g > serverGoroutines+5 {
		t.Errorf("the server has %d goroutines after all clients have gone, %d before they came", g, serverGoroutines)
	}
}
