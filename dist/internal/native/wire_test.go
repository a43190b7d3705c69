// SPDX-License-Identifier: Apache-2.0

package native

import (
	"bytes"
	"reflect"
	"testing"

	"github.com/cohort-ml/cohort/dist/internal/collective"
)

var sampleCall = collective.Call{Op: collective.OpBroadcast, DType: collective.Int64, Root: 3, Count: 1 << 40, Seq: 1<<33 + 5, Layout: 1<<63 + 7}

func TestWireRoundTrip(t *testing.T) {
	h := hello{purpose: forSlab, rank: 6, number: 1 << 60, group: "world"}
	if got, err := parseHello(h.encode()); err != nil || got != h {
		t.Errorf("hello: %+v, %v", got, err)
	}
	if got, err := parseCall(appendCall(nil, &sampleCall)); err != nil || !reflect.DeepEqual(got, sampleCall) {
		t.Errorf("call: %+v, %v", got, err)
	}
	rank, kind, text, err := parseFault(encodeFault(2, kindFailed, "why"), 3)
	if rank != 2 || kind != kindFailed || text != "why" || err != nil {
		t.Errorf("fault: %d %d %q %v", rank, kind, text, err)
	}
	if rank, got, err := parseStalled(encodeStalled(2, &sampleCall), 3); rank != 2 || err != nil || !reflect.DeepEqual(got, sampleCall) {
		t.Errorf("call under way: %d %+v %v", rank, got, err)
	}
	m := &mismatch{calls: [2]collective.RankCall{{Rank: 0, Call: sampleCall}, {Rank: 2, Call: sampleCall, Site: "é.go:8 main.f"}}, said: [2]bool{false, true}}
	if got, err := parseMismatch(m.encode(), 3); err != nil || !reflect.DeepEqual(got, m) {
		t.Errorf("mismatch: %+v, %v", got, err)
	}
}

// FuzzWire feeds every parser of this package: none may panic, and what one
// accepts must encode to the same bytes.
func FuzzWire(f *testing.F) {
	h := hello{purpose: forCollectives, rank: 1, group: "world"}
	f.Add(h.encode())
	f.Add(appendCall(nil, &sampleCall))
	f.Add(encodeStalled(1, &sampleCall))
	f.Add(encodeFault(1, kindDied, "killed"))
	f.Add([]byte((&mismatch{calls: [2]collective.RankCall{{Call: sampleCall, Site: "a.go:1"}, {Rank: 1, Call: sampleCall}}, said: [2]bool{true, false}}).encode()))
	f.Fuzz(func(t *testing.T, b []byte) {
		if h, err := parseHello(b); err == nil && !bytes.Equal(h.encode(), b) {
			t.Errorf("hello %+v of %x encodes to %x", h, b, h.encode())
		}
		if rank, kind, text, err := parseFault(b, 4); err == nil && !bytes.Equal(encodeFault(rank, kind, text), b) {
			t.Errorf("fault %d %d %q of %x", rank, kind, text, b)
		}
		if c, err := parseCall(b); err == nil && !bytes.Equal(appendCall(nil, &c), b) {
			t.Errorf("call %+v of %x", c, b)
		}
		if rank, c, err := parseStalled(b, 4); err == nil && !bytes.Equal(encodeStalled(rank, &c), b) {
			t.Errorf("call under way %d %+v of %x", rank, c, b)
		}
		if m, err := parseMismatch(string(b), 4); err == nil && m.encode() != string(b) {
			t.Errorf("mismatch %+v of %x", m, b)
		}
	})
}
