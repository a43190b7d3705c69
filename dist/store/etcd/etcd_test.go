// SPDX-License-Identifier: Apache-2.0

package etcd_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/dist/store/etcd"
	"github.com/cohort-ml/cohort/dist/store/storetest"
	"github.com/cohort-ml/cohort/internal/transport"
)

// server is the etcd that all tests use, each below a root of its own. It is
// started by the first one that needs it; endpoint is empty where there is none.
var server struct {
	once     sync.Once
	cmd      *exec.Cmd
	ended    <-chan struct{} // closed when it has
	endpoint string
	why      string
	dir      string
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(tests{m}) }

// tests are those of this package, and then the end of their server.
type tests struct{ *testing.M }

func (t tests) Run() int {
	code := t.M.Run()
	if server.cmd != nil {
		_ = server.cmd.Process.Kill()
		<-server.ended
		_ = os.RemoveAll(server.dir)
	}
	return code
}

// start starts etcd at ports that nobody else has.
func start() {
	exe, err := exec.LookPath("etcd")
	if err != nil {
		server.why = "there is no etcd on the PATH (Debian's package etcd-server has it): " + err.Error()
		return
	}
	clients, err := transport.HoldPort("127.0.0.1")
	if err == nil {
		defer clients.Close()
		var peers *transport.HeldPort
		if peers, err = transport.HoldPort("127.0.0.1"); err == nil {
			defer peers.Close()
			err = startAt(exe, "http://"+clients.Addr(), "http://"+peers.Addr())
		}
	}
	if err != nil {
		server.why = err.Error()
	}
}

func startAt(exe, url, peerURL string) error {
	dir, err := os.MkdirTemp("", "etcd")
	if err != nil {
		return err
	}
	var log bytes.Buffer
	cmd := exec.Command(exe, "--data-dir", dir, "--name", "test",
		"--listen-client-urls", url, "--advertise-client-urls", url,
		"--listen-peer-urls", peerURL, "--initial-advertise-peer-urls", peerURL, "--initial-cluster", "test="+peerURL)
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.Env = append(os.Environ(), "ETCD_UNSUPPORTED_ARCH=arm64")
	if err := cmd.Start(); err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	ended := make(chan struct{}) // when the process has
	go func() {
		_ = cmd.Wait()
		cancel()
		close(ended)
	}()
	_, end, err := etcd.Dial(ctx, []string{url}, "up", etcd.Options{})
	if err != nil {
		_ = cmd.Process.Kill()
		<-ended
		return errors.Join(fmt.Errorf("etcd did not come up: %w\n%s", err, log.String()), os.RemoveAll(dir))
	}
	end()
	server.cmd, server.ended, server.dir, server.endpoint = cmd, ended, dir, url
	return nil
}

// client connects to the test's etcd, or skips the test where there is none.
func client(t *testing.T) *etcd.Client {
	t.Helper()
	server.once.Do(start)
	if server.endpoint == "" {
		if strings.HasPrefix(server.why, "there is no etcd") {
			t.Skip(server.why)
		}
		t.Fatal(server.why)
	}
	return newClient(t, etcd.Options{}, server.endpoint)
}

func newClient(t *testing.T, o etcd.Options, endpoints ...string) *etcd.Client {
	t.Helper()
	c, err := etcd.NewClient(endpoints, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// post asks the gateway of a member, past the client.
func post(t *testing.T, endpoint, path, body string) map[string]any {
	t.Helper()
	r, err := http.Post(endpoint+path, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	var reply map[string]any
	if err := json.NewDecoder(r.Body).Decode(&reply); err != nil || r.StatusCode != http.StatusOK {
		t.Fatalf("%s %s: %s, %v, %v", path, body, r.Status, reply, err)
	}
	http.DefaultClient.CloseIdleConnections()
	return reply
}

var numRoots atomic.Int64

// root returns another root each time, also in a test that is run again (-count): below it
// there is nothing yet.
func root(t *testing.T) string { return fmt.Sprint(t.Name(), "-", numRoots.Add(1)) }

func TestConformance(t *testing.T) {
	storetest.Run(t, storetest.Config{MaxValue: etcd.MaxValue, Patience: time.Minute, Open: func(t *testing.T) (store.Store, store.Store) {
		at := root(t)
		return etcd.New(client(t), at), etcd.New(client(t), at+"/")
	}})
}

// Stores below different roots, and queues and keys of like names, do not meet.
func TestApart(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, at := client(t), root(t)
	a, b := etcd.New(c, at+"/a"), etcd.New(c, at+"/ab")
	for i, s := range []store.Store{a, b, store.Prefix(a, "sub")} {
		if err := s.Set(ctx, "k", fmt.Append(nil, i)); err != nil {
			t.Fatal(err)
		}
		for _, q := range []string{"q", "q/1/q", "1/q"} {
			if err := s.QueuePush(ctx, q, fmt.Append(nil, q, i)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i, s := range []store.Store{a, b, store.Prefix(a, "sub")} {
		if v, err := s.Get(ctx, "k"); string(v) != fmt.Sprint(i) || err != nil {
			t.Errorf("store %d: %q, %v", i, v, err)
		}
		for _, q := range []string{"q", "q/1/q", "1/q"} {
			if n, err := s.QueueLen(ctx, q); n != 1 || err != nil {
				t.Errorf("store %d: %d values in queue %s, %v", i, n, q, err)
			}
		}
	}
	if n, err := a.NumKeys(ctx, ""); n != 2 || err != nil {
		t.Errorf("%d keys, %v, want 2", n, err)
	}
}

// More keys than one request of etcd takes are read as of one moment.
func TestManyKeys(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	at := root(t)
	a, b := etcd.New(client(t), at), etcd.New(client(t), at)
	const num = 2*etcd.MaxMultiSet + 5
	var keys []string
	for i := range num {
		keys = append(keys, fmt.Sprint("k", i))
	}
	first, last := keys[0], keys[num-1]
	var wg sync.WaitGroup
	wg.Go(func() {
		if values, err := b.MultiGet(ctx, keys...); err != nil || len(values) != num || string(values[num-1]) != "1" {
			t.Errorf("%d values, %v", len(values), err)
		}
	})
	for part := keys[1 : num-1]; len(part) > 0; {
		n := min(len(part), etcd.MaxMultiSet)
		if err := a.MultiSet(ctx, part[:n], make([][]byte, n)); err != nil {
			t.Fatal(err)
		}
		part = part[n:]
	}
	if err := a.MultiSet(ctx, []string{first, last}, [][]byte{[]byte("1"), []byte("1")}); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	// The first and the last are of two requests, and change together.
	stop := make(chan struct{})
	wg.Go(func() {
		for i := 2; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			v := fmt.Append(nil, i)
			if err := a.MultiSet(ctx, []string{first, last}, [][]byte{v, v}); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for range 20 {
		if values, err := b.MultiGet(ctx, keys...); err != nil || !bytes.Equal(values[0], values[num-1]) {
			t.Errorf("values of two moments: %q and %q, %v", values[0], values[num-1], err)
		}
	}
	close(stop)
	wg.Wait()
	if err := a.MultiSet(ctx, keys, make([][]byte, num)); !errors.Is(err, store.ErrLimit) || !strings.Contains(err.Error(), "128") {
		t.Errorf("%v, want the limit", err)
	}
}

// Compaction of what a wait has seen does not end it.
func TestCompaction(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s := etcd.New(client(t), root(t))
	for i := range 50 {
		key := fmt.Sprint("k", i)
		got := make(chan error, 1)
		go func() {
			v, err := s.Get(ctx, key)
			if err == nil && string(v) != key {
				err = fmt.Errorf("got %q", v)
			}
			got <- err
		}()
		r := post(t, server.endpoint, "/v3/kv/put", `{"key":"b3RoZXI=","value":"YQ=="}`)
		post(t, server.endpoint, "/v3/kv/compaction", fmt.Sprintf(`{"revision":"%s"}`, r["header"].(map[string]any)["revision"]))
		if err := s.Set(ctx, key, []byte(key)); err != nil {
			t.Fatal(err)
		}
		if err := <-got; err != nil {
			t.Fatal(err)
		}
	}
}

// A cluster that is not there is an error at the deadline that names where it was sought.
func TestAway(t *testing.T) {
	port, err := transport.HoldPort("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	defer port.Close()
	addr := port.Addr()
	s := etcd.New(newClient(t, etcd.Options{}, addr), "job")
	for name, call := range map[string]func(ctx context.Context) error{
		"set":       func(ctx context.Context) error { return s.Set(ctx, "key", nil) },
		"get":       func(ctx context.Context) error { _, err := s.Get(ctx, "key"); return err },
		"add":       func(ctx context.Context) error { _, err := s.Add(ctx, "key", 1); return err },
		"queue pop": func(ctx context.Context) error { _, err := s.QueuePop(ctx, "key"); return err },
	} {
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		err := call(ctx)
		cancel()
		var e *store.Error
		if !errors.As(err, &e) || !errors.Is(err, context.DeadlineExceeded) || e.Op != name || !strings.Contains(err.Error(), addr) || !strings.Contains(err.Error(), `"key"`) {
			t.Errorf("%s: %v, want the deadline, the operation, the key and the address", name, err)
		}
	}
}
