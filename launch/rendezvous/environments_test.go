// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/internal/fingerprint"
	"github.com/cohort-ml/cohort/launch"
)

// TestEnvironments: the nodes of a round compare their environments through a store, in
// virtual time. The node that differs, or does not answer, is named on every node.
func TestEnvironments(t *testing.T) {
	print := func(torch string) *fingerprint.Fingerprint {
		f := &fingerprint.Fingerprint{}
		f.Set(fingerprint.Packages, "torch", torch)
		return f
	}
	for _, c := range []struct {
		name   string
		torch  []string // "" is a node that never answers, such as one of another version
		check  launch.EnvironmentCheck
		fails  string // what the errors of all nodes say; "" for none
		prints string // what node 0 prints
	}{
		{"equal", []string{"2.15", "2.15", "2.15"}, launch.CheckStop, "", ""},
		{"one differs", []string{"2.15", "2.14", "2.15"}, launch.CheckStop, "1 difference that must not be", "host1 (agent pid 11)  must  packages.torch"},
		{"node 0 differs", []string{"2.14", "2.15", "2.15"}, launch.CheckStop, "1 difference that must not be", "host0 (agent pid 10)  must  packages.torch"},
		{"warn", []string{"2.15", "2.14", "2.15"}, launch.CheckWarn, "", "host1 (agent pid 11)  must  packages.torch"},
		{"off", []string{"2.15", "2.14", "2.15"}, launch.CheckOff, "", ""},
		{"silent", []string{"2.15", "", "2.15"}, launch.CheckStop, "no answer for 20s from host1 (agent pid 11): is another version of Cohort installed there?", ""},
		{"silent, warn", []string{"2.15", "", "2.15"}, launch.CheckWarn, "", "no answer for 20s from host1"},
		{"node 0 is silent", []string{"", "2.15", "2.15"}, launch.CheckStop, "host0 (agent pid 10) has said nothing of environments for 40s", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mem := store.NewMemory()
				open := func(context.Context) (*Opened, error) {
					return &Opened{Store: mem, Close: func() {}, Lasting: true}, nil
				}
				var nodes []Node
				for i := range c.torch {
					nodes = append(nodes, Node{ID: fmt.Sprintf("%016x", i), Host: fmt.Sprintf("host%d", i), PID: 10 + i})
				}
				errs, outs := make([]error, len(nodes)), make([]bytes.Buffer, len(nodes))
				began := time.Now()
				var all sync.WaitGroup
				for i, torch := range c.torch {
					if torch == "" {
						continue
					}
					all.Go(func() {
						sc := newStoreClient(open, "job", 5*time.Second)
						defer sc.close()
						one := &comparison{store: sc, prefix: "environments/1/", nodes: nodes, mine: i, check: c.check, print: func() *fingerprint.Fingerprint { return print(torch) }, out: &outs[i]}
						errs[i] = one.compare(t.Context())
					})
				}
				all.Wait()
				if d := time.Since(began); d > verdictPatience+time.Second {
					t.Errorf("it took %v", d)
				}
				for i, err := range errs {
					switch {
					case c.torch[i] == "":
					case c.fails == "" && err != nil, c.fails != "" && (err == nil || !strings.Contains(err.Error(), c.fails)):
						t.Errorf("node %d: %v, want %q", i, err, c.fails)
					}
				}
				if got := outs[0].String(); !strings.Contains(got, c.prints) || c.prints == "" && got != "" {
					t.Errorf("node 0 prints %q, want %q", got, c.prints)
				}
				if c.check == launch.CheckWarn && outs[2].Len() > 0 && c.torch[1] != "" {
					t.Errorf("node 2 prints what concerns node 1: %q", outs[2].String())
				}
			})
		})
	}
}

// TestBadAnswers: what is no answer of a node is refused, within limits.
func TestBadAnswers(t *testing.T) {
	good, err := writeAnswer(&answer{Check: launch.CheckStop, Time: 1, Print: &fingerprint.Fingerprint{}})
	if err != nil {
		t.Fatal(err)
	}
	if a, err := readAnswer(good); err != nil || a.Time != 1 {
		t.Errorf("%+v (%v)", a, err)
	}
	for name, b := range map[string][]byte{"empty": nil, "text": []byte("hello"), "half": good[:len(good)/2], "long": make([]byte, maxAnswer+1)} {
		if _, err := readAnswer(b); err == nil {
			t.Errorf("%s is an answer", name)
		}
	}
}

func FuzzAnswer(f *testing.F) {
	good, _ := writeAnswer(&answer{Check: launch.CheckStop, Time: 1, Print: &fingerprint.Fingerprint{}})
	f.Add(good)
	f.Fuzz(func(t *testing.T, b []byte) { _, _ = readAnswer(b) })
}
