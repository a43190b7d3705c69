// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestShutdownTells: a shutdown that others do not join says for whom it waits, on
// every rank, and one that calls hold up for which.
func TestShutdownTells(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	stderr := os.Stderr
	os.Stderr = file
	defer func() { os.Stderr = stderr }()
	synctest.Test(t, func(t *testing.T) {
		a := agents(t, "pipe", 4, serveBasics())
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		wait.Async(ctx, a[3].Peer("w2"), struct{}{})
		done := make(chan error, 3)
		for _, x := range []*Agent{a[0], a[1], a[3]} {
			go func() { done <- x.Shutdown(ctx) }()
		}
		for range 3 {
			if err := <-done; err == nil {
				t.Error("a shutdown without all agents succeeded")
			}
		}
	})
	text, err := os.ReadFile(file.Name())
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"agent w0: shutdown has been waiting for 5s: these have not called it, or have calls under way: w2 (rank 2); w3 (rank 3)\n",
		"agent w1: shutdown has been waiting for 5s: these have not called it, or have calls under way: w2 (rank 2); w3 (rank 3)\n",
		"agent w3: shutdown has been waiting for 5s: calls are under way: test.wait at w2\n",
	} {
		if strings.Count(string(text), want) != 1 {
			t.Errorf("standard error has %q; want %q", text, want)
		}
	}
}
