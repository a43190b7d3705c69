// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/dist/store/storetest"
	"github.com/cohort-ml/cohort/internal/transport"
)

// served returns a store on a port and a function that connects to it.
func served(t *testing.T, addr string) (mem *store.Memory, connect func() *store.Client) {
	t.Helper()
	token := transport.NewToken()
	port, err := transport.Listen(addr, token)
	if err != nil {
		t.Fatal(err)
	}
	mem = store.NewMemory()
	srv := store.Serve(port, mem)
	t.Cleanup(func() { srv.Close(); port.Close() })
	return mem, func() *store.Client {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		c, err := store.Connect(ctx, port.Addr(), token, transport.EncryptControl)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
}

func openFile(t *testing.T, path string) *store.File {
	t.Helper()
	s, err := store.OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// servedPyTorch returns a store that PyTorch can speak to, and a function that connects
// to it as one of a generation.
func servedPyTorch(t *testing.T) (srv *store.PyTorchServer, connect func(store.PyTorchGeneration) *store.PyTorchClient) {
	t.Helper()
	srv, err := store.ListenPyTorch("127.0.0.1:0", store.WithRefusals(func(r *store.PyTorchRefusal) { t.Error(r) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { srv.Close() })
	return srv, func(g store.PyTorchGeneration) *store.PyTorchClient {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		c, err := store.DialPyTorch(ctx, srv.Addr(), store.WithGeneration(g))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
}

func openPyTorchFile(t *testing.T, path string, numWorkers int) *store.PyTorchFile {
	t.Helper()
	s, err := store.OpenPyTorchFile(path, numWorkers)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// kinds are the implementations, each with two views of one empty store.
var kinds = []struct {
	name string
	open func(t *testing.T) (a, b store.Store)
}{
	{"memory", func(t *testing.T) (store.Store, store.Store) { m := store.NewMemory(); return m, m }},
	{"tcp", func(t *testing.T) (store.Store, store.Store) {
		_, connect := served(t, "127.0.0.1:0")
		return connect(), connect()
	}},
	{"one connection", func(t *testing.T) (store.Store, store.Store) {
		_, connect := served(t, "127.0.0.1:0")
		c := connect()
		return c, c
	}},
	{"unix", func(t *testing.T) (store.Store, store.Store) {
		_, connect := served(t, "unix:")
		return connect(), connect()
	}},
	{"tcp and memory", func(t *testing.T) (store.Store, store.Store) {
		m, connect := served(t, "127.0.0.1:0")
		return m, connect()
	}},
	{"file", func(t *testing.T) (store.Store, store.Store) {
		path := filepath.Join(t.TempDir(), "store")
		return openFile(t, path), openFile(t, path)
	}},
	{"one file", func(t *testing.T) (store.Store, store.Store) {
		s := openFile(t, filepath.Join(t.TempDir(), "store"))
		return s, s
	}},
	{"pytorch", func(t *testing.T) (store.Store, store.Store) {
		_, connect := servedPyTorch(t)
		return connect(store.PyTorch2), connect(0)
	}},
	{"pytorch and memory", func(t *testing.T) (store.Store, store.Store) {
		srv, connect := servedPyTorch(t)
		return connect(0), srv.Store()
	}},
	{"pytorch 1.13", func(t *testing.T) (store.Store, store.Store) {
		_, connect := servedPyTorch(t)
		return connect(store.PyTorch1), connect(store.PyTorch1)
	}},
	{"pytorch file", func(t *testing.T) (store.Store, store.Store) {
		path := filepath.Join(t.TempDir(), "store")
		return openPyTorchFile(t, path, -1), openPyTorchFile(t, path, -1)
	}},
	{"prefix", func(t *testing.T) (store.Store, store.Store) {
		m, connect := served(t, "127.0.0.1:0")
		// Neighbours that must not be seen.
		ctx := t.Context()
		m.Set(ctx, "job/2/k", []byte("other"))
		m.Set(ctx, "job/10/x", []byte("other"))
		m.QueuePush(ctx, "job/2/q", []byte("other"))
		return store.Prefix(m, "job/1"), store.Prefix(store.Prefix(connect(), "job"), "1")
	}},
}

// weak are the cases that implementations do without: PyTorch's protocol promises less.
var weak = map[string][]string{
	"pytorch":             {"AddRefuses", "Limits", "LimitsOfSums"},
	"pytorch and memory":  {"AddRefuses", "Limits", "LimitsOfSums"},
	"pytorch file":        {"AddRefuses", "Queue", "QueueSharesOut", "QueueBesideKeys", "PopGivesUp"},
	"pytorch before 2.10": {"AddRefuses", "Limits", "LimitsOfSums", "EndedContext", "NumKeys"},
	"pytorch without libuv": {"AddRefuses", "Limits", "LimitsOfSums", "EndedContext", "NumKeys", "Queue",
		"QueueSharesOut", "QueueBesideKeys", "PopGivesUp"},
	"pytorch 1.13": {"AddRefuses", "Limits", "LimitsOfSums", "ValuesStayApart", "GetAndWaitWait", "Append", "EndedContext",
		"MultiSetIsAtomic", "NumKeys", "Queue", "QueueSharesOut", "QueueBesideKeys", "PopGivesUp"},
}

func TestConformance(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			storetest.Run(t, storetest.Config{Open: k.open, Without: weak[k.name]})
		})
	}
}
