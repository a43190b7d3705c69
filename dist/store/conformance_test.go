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

func TestConformance(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) { storetest.Run(t, storetest.Config{Open: k.open}) })
	}
}
