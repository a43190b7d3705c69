// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"errors"
	"strings"
	"testing"
)

const someID = "0123456789abcdef"

func someState() *State {
	return &State{
		Version: 3, Born: someID, Job: "job", Min: 1, Max: 2, Phase: Running, Round: 1, Decider: someID,
		Members: []Node{{ID: someID, Host: "h", Addr: "10.0.0.1", Port: 1, NumRanks: 2, Role: "default", Rank: -1}},
	}
}

// TestWire: what is written is read, and what nobody writes is an error.
func TestWire(t *testing.T) {
	good := string(encode(someState()))
	if _, err := decodeState([]byte(good)); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{
		"", "{}", "null", good + "{}", good[:len(good)-1],
		strings.Replace(good, `"version":3`, `"version":0`, 1),
		strings.Replace(good, `"max":2`, `"max":-2`, 1),
		strings.Replace(good, `"running"`, `"sleeping"`, 1),
		strings.Replace(good, `"ranks":2`, `"ranks":0`, 1),
		strings.Replace(good, `"ranks":2`, `"ranks":200000000`, 1),
		strings.Replace(good, `"port":1`, `"port":70000`, 1),
		strings.Replace(good, `"host":"h"`, `"host":"h\n\u001b[2J"`, 1),
		strings.Replace(good, `"job"`, `"jobs"`, 1),
		strings.Replace(good, `"members":[`, `"members":[{"id":"`+someID+`","host":"h","pid":1,"addr":"a","port":1,"ranks":1,"role":"","rank":-1},`, 1),
	} {
		if s, err := decodeState([]byte(bad)); err == nil || !errors.Is(err, errWire) {
			t.Errorf("%s is read as %+v, %v", bad, s, err)
		}
	}
}

// FuzzDecode: no bytes in the store make a machine panic, or go beyond the limits.
func FuzzDecode(f *testing.F) {
	f.Add(encode(someState()))
	f.Add(encode(&Card{Node: someState().Members[0], Min: 1, Max: 2, Beat: 1, Status: Ready}))
	f.Fuzz(func(t *testing.T, b []byte) {
		if s, err := decodeState(b); err == nil {
			for i := range s.Members {
				if p := s.place(i); p.FirstRank+s.Members[i].NumRanks > p.NumRanks || p.NodeRank >= p.NumNodes {
					t.Errorf("member %d has place %+v", i, p)
				}
			}
			set := settings(s.Min, s.Max, s.MaxRestarts)
			set.Job, s.Lost = s.Job, set.Timing.Lost()
			m := NewMachine(set, someState().Members[0], func() string { return someID }, func() int { return 1 })
			w := newWorld(1, set)
			m.Step(w.now, Ticked{})
			m.Step(w.now, Put{OK: true, Sent: w.now})
			m.Step(w.now, Arrived{OK: true})
			m.Step(w.now, Read{OK: true, Asked: true, State: s})
			m.Step(w.now, Looked{OK: true, List: []string{someID}})
			m.Step(w.now.Add(set.Timing.Join), Looked{OK: true, List: []string{someID}})
		}
		if c, err := decodeCard(b); err == nil && (c.Node.NumRanks > maxRanks || !isID(c.Node.ID)) {
			t.Errorf("card %+v", c)
		}
	})
}
