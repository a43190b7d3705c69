// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
)

// FuzzReplies: whatever a server answers is a value or an error, and what is shown of it is one short line.
func FuzzReplies(f *testing.F) {
	for _, s := range []string{
		`{"header":{"revision":"2"},"kvs":[{"key":"Zm9v","mod_revision":"2","value":"YQ=="}],"count":"1"}`,
		`{"header":{"revision":3},"succeeded":true,"responses":[{"response_put":{}},{"response_range":{"kvs":[{}]}}]}`,
		`{"result":{"header":{"revision":"4"},"created":true}}` + "\n" + `{"result":{"events":[{"kv":{"key":"Zm9v"}}]}}`,
		`{"result":{"canceled":true,"compact_revision":"3"}}`,
		`{"error":{"grpc_code":14,"http_code":503,"message":"etcdserver: no leader"}}`,
		`{"error":"etcdserver: key is not provided","message":"etcdserver: key is not provided","code":3}`,
		`{"code":11,"message":"etcdserver: mvcc: required revision has been compacted","details":[]}`,
		"404 page not found", "", "null", `{"count":"9223372036854775808"}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var r rangeReply
		var x txnReply
		var d deleteReply
		_ = json.Unmarshal(data, &r)
		_ = json.Unmarshal(data, &d)
		if json.Unmarshal(data, &x) == nil {
			n := len(x.Responses)
			if list, err := x.ranges(n); err == nil {
				for i := range list {
					_ = list[i].Kvs // each is there
				}
			}
			if _, err := x.ranges(n + 1); err == nil {
				t.Error("an answer too few is taken")
			}
		}
		for _, status := range []int{0, 200, 307, 400, 404, 503} {
			err := parseStatus(data, status)
			if text := err.Error(); len(text) > 2*maxWords+200 || strings.ContainsAny(text, "\n\r\x00") {
				t.Errorf("%q", text)
			}
			_, _ = compacted(err), tooLarge(err)
		}
		m := newMessages(bytes.NewReader(data))
		for range len(data) + 1 {
			if _, err := m.next(); err != nil {
				if s := (*Status)(nil); errors.As(err, &s) {
					continue
				}
				return
			}
		}
		t.Error("more messages than bytes")
	})
}

// A message of a watch beyond the limit is an error, also where the others were short.
func TestLongMessage(t *testing.T) {
	short := `{"result":{"created":true}}`
	m := newMessages(io.MultiReader(strings.NewReader(strings.Repeat(short, 1000)), strings.NewReader(`{"result":{"cancel_reason":"`), bytes.NewReader(bytes.Repeat([]byte("x"), maxReply+1))))
	for range 1000 {
		if r, err := m.next(); err != nil || !r.Created {
			t.Fatal(r, err)
		}
	}
	if _, err := m.next(); !errors.Is(err, errTooLong) {
		t.Errorf("%v, want the limit", err)
	}
}

func TestAfter(t *testing.T) {
	for _, c := range [][2]string{{"k/", "k0"}, {"a\xff", "b"}, {"\xff\xff", "\x00"}, {"", "\x00"}} {
		if got := after(c[0]); string(got) != c[1] {
			t.Errorf("after %q comes %q, want %q", c[0], got, c[1])
		}
	}
}
