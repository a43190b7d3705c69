// SPDX-License-Identifier: Apache-2.0

package native

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/dist/operation"
)

var sampleCall = operation.Call{Op: operation.Broadcast, DType: operation.Int64, Root: 3, Count: 1 << 40, Seq: 1<<33 + 5, Layout: 1<<63 + 7}

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
	waits := sampleCall
	waits.Recvs = []int{-1, 300, 0}
	if rank, got, err := parseStalled(encodeStalled(1, &waits), 3); rank != 1 || err != nil || !reflect.DeepEqual(got, waits) {
		t.Errorf("call under way that wants something: %d %+v %v", rank, got, err)
	}
	if rank, got, err := parseStalled(encodeStalled(2, &sampleCall), 3); rank != 2 || err != nil || !reflect.DeepEqual(got, sampleCall) {
		t.Errorf("call under way: %d %+v %v", rank, got, err)
	}
	m := &mismatch{calls: [2]fault.RankCall{{Rank: 0, Call: sampleCall}, {Rank: 2, Call: sampleCall, Site: "é.go:8 main.f", Group: "tp"}}, said: [2]bool{false, true}}
	if got, err := parseMismatch(m.encode(), 3); err != nil || !reflect.DeepEqual(got, m) {
		t.Errorf("mismatch: %+v, %v", got, err)
	}
}

var sampleDoing = fault.Doing{State: fault.DoingUnderWay, Group: "tp", Key: 1<<63 + 1, Call: sampleCall,
	Site: "a.go:8 main.f", For: time.Second, ID: 9, Blocking: true, Called: 1 << 40, Sent: 2, Received: 3}

// TestAnswers sends what a rank is doing to another one, and texts that no
// error may show.
func TestAnswers(t *testing.T) {
	asker, about, number, d, err := parseDoing(encodeDoing(2, 1, 77, &sampleDoing), 3)
	if asker != 2 || about != 1 || number != 77 || err != nil || !reflect.DeepEqual(d, sampleDoing) {
		t.Errorf("%d %d %d %+v %v", asker, about, number, d, err)
	}
	for _, tc := range []struct{ text, site, name string }{
		{"a.go:8 main.f", "a.go:8 main.f", "a.go:8 main.f"},
		{"line\nbreak\x1b[31m \xff", "line?break?[31m ?", "line?break?[31m ?"},
		{strings.Repeat("é", 200), "..." + strings.Repeat("é", 126), strings.Repeat("é", 38) + "..."},
	} {
		if got := siteText(tc.text); got != tc.site || siteText(got) != got {
			t.Errorf("the site %q of %d bytes, want %q", got, len(got), tc.site)
		}
		if got := nameText(tc.text); got != tc.name || nameText(got) != got {
			t.Errorf("the name %q of %d bytes, want %q", got, len(got), tc.name)
		}
	}
}

// FuzzWire feeds every parser of this package: none may panic, and what one
// accepts must encode to the same bytes.
func FuzzWire(f *testing.F) {
	h := hello{purpose: forCollectives, rank: 1, group: "world"}
	f.Add(h.encode())
	f.Add(appendCall(nil, &sampleCall))
	f.Add(encodeStalled(1, &sampleCall))
	f.Add(append(encodeStalled(1, &sampleCall), 0, 3, 1, 7))
	f.Add(encodeFault(1, kindDied, "killed"))
	f.Add([]byte((&mismatch{calls: [2]fault.RankCall{{Call: sampleCall, Site: "a.go:1"}, {Rank: 1, Call: sampleCall}}, said: [2]bool{true, false}}).encode()))
	f.Add(encodeAsk(1, 2, 3))
	f.Add(encodeDoing(1, 2, 3, &sampleDoing))
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
		if asker, about, number, err := parseAsk(b, 4); err == nil && !bytes.Equal(encodeAsk(asker, about, number), b) {
			t.Errorf("question %d %d %d of %x", asker, about, number, b)
		}
		if asker, about, number, d, err := parseDoing(b, 4); err == nil && !bytes.Equal(encodeDoing(asker, about, number, &d), b) {
			t.Errorf("answer %d %d %d %+v of %x", asker, about, number, d, b)
		}
		if m, err := parseMismatch(string(b), 4); err == nil && m.encode() != string(b) {
			t.Errorf("mismatch %+v of %x", m, b)
		}
	})
}
