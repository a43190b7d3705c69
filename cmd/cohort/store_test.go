// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"io"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/internal/transport"
)

// TestStoreCommand: what it prints first says where the store is, and what it was sent
// that is no request it tells, with the sender.
func TestStoreCommand(t *testing.T) {
	t.Setenv(string(envvar.Token), transport.NewToken().Text())
	for name, serve := range map[string]func(ctx context.Context, stdout, stderr io.Writer) error{
		"pytorch": func(ctx context.Context, stdout, stderr io.Writer) error {
			return servePyTorch(ctx, "127.0.0.1:0", []string{"10.0.0.0/8"}, stdout, stderr)
		},
		"cohort": func(ctx context.Context, stdout, _ io.Writer) error { return serveCohort(ctx, "127.0.0.1:0", stdout) },
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			out, stdout := io.Pipe()
			errs, stderr := io.Pipe()
			ended := make(chan error, 1)
			go func() {
				ended <- serve(ctx, stdout, stderr)
				stderr.Close()
			}()
			line, err := bufio.NewReader(out).ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			addr := line[strings.LastIndex(strings.TrimSpace(line), " ")+1 : len(line)-1]
			said := bufio.NewReader(errs)
			if name == "pytorch" {
				if line, err := said.ReadString('\n'); err != nil || !strings.Contains(line, "no authentication") {
					t.Errorf("%q, %v, want why it asks for no token", line, err)
				}
				c, err := store.DialPyTorch(ctx, addr)
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				if err := c.Set(ctx, "k", []byte("v")); err != nil {
					t.Error(err)
				}
				added := make(chan error, 1)
				go func() { // beside the read: the store tells of it before it ends the connection
					_, err := c.Add(ctx, "k", 1)
					added <- err
				}()
				line, err := said.ReadString('\n')
				if <-added == nil {
					t.Error("added to text")
				}
				if err != nil || !strings.Contains(line, "put out 127.0.0.1:") {
					t.Errorf("%q, %v, want who was put out", line, err)
				}
			} else {
				c, err := store.Dial(ctx, addr, "")
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				if err := c.Set(ctx, "k", []byte("v")); err != nil {
					t.Error(err)
				}
			}
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}

func TestStoreAdmits(t *testing.T) {
	admit, err := admission([]string{"10.1.0.0/16", "fd00::7"})
	if err != nil {
		t.Fatal(err)
	}
	for addr, want := range map[string]bool{"10.1.2.3": true, "10.2.0.1": false, "fd00::7": true, "fd00::8": false, "127.0.0.1": true, "::1": true} {
		if got := admit(netip.MustParseAddr(addr)); got != want {
			t.Errorf("%s: %v, want %v", addr, got, want)
		}
	}
	for args, want := range map[string]string{
		"store --admit nobody":                 `--admit "nobody"`,
		"store --wire gloo":                    `--wire is "gloo", want pytorch or cohort`,
		"store --wire cohort --admit 10.0.0.1": "--admit is for --wire pytorch",
		"store --listen nowhere":               "nowhere",
		"store x":                              "takes no argument",
	} {
		code, _, errs := cohort(strings.Fields(args)...)
		if code != exitUsage || !strings.Contains(errs, want) {
			t.Errorf("cohort %s: exit code %d, %q, want %q", args, code, errs, want)
		}
	}
}
