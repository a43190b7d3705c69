// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"context"
	"encoding/binary"
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/cohort-ml/cohort/internal/transport"
)

func TestRequestsSurviveTheWire(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		key := rapid.StringN(1, 20, 100)
		data := rapid.SliceOfN(rapid.Byte(), 0, 50)
		q := request{op: opcode(rapid.IntRange(1, 14).Draw(t, "op"))}
		switch q.op {
		case opCancel:
		case opWait, opMultiGet, opMultiSet:
			q.keys = append([]string{}, rapid.SliceOfN(key, 0, 5).Draw(t, "keys")...)
		default:
			q.keys = []string{key.Draw(t, "key")}
		}
		switch q.op {
		case opMultiSet:
			q.values = [][]byte{}
			for range q.keys {
				q.values = append(q.values, append([]byte{}, data.Draw(t, "values")...))
			}
		case opSet, opAppend, opPush:
			q.value = append([]byte{}, data.Draw(t, "value")...)
		case opAdd:
			q.delta = rapid.Int64().Draw(t, "delta")
		case opCAS:
			q.value = append([]byte{}, data.Draw(t, "value")...)
			if rapid.Bool().Draw(t, "expects a value") {
				q.expected = append([]byte{}, data.Draw(t, "expected")...)
			}
		}
		id := rapid.Uint64().Draw(t, "id")
		head, tail := appendRequest(nil, id, &q)
		gotID, got, err := parseRequest(byte(q.op), append(head, tail...))
		if err != nil || gotID != id || !reflect.DeepEqual(got, q) {
			t.Fatalf("sent %+v, got %+v, %v", q, got, err)
		}
	})
}

func TestRepliesSurviveTheWire(t *testing.T) {
	for _, r := range []reply{
		{status: statusOK},
		{status: statusOK, value: []byte{}},
		{status: statusNo, value: []byte("x")},
		{status: statusOK, number: -1 << 63},
		{status: statusTooLarge},
		{status: statusOK, values: [][]byte{}},
		{status: statusOK, values: [][]byte{[]byte("a"), {}, []byte("b")}},
		{status: statusCancelled, missing: []string{"a", "", "b"}},
	} {
		head, tail := appendReply(nil, 7, &r)
		id, got, err := parseReply(byte(r.status), append(head, tail...))
		if err != nil || id != 7 || !reflect.DeepEqual(got, r) {
			t.Errorf("sent %+v, got %+v, %v", r, got, err)
		}
	}
}

// TestNumbersThatLie: a message cannot say that it has more keys or values than
// any call may have, however many bytes it brings along.
func TestNumbersThatLie(t *testing.T) {
	const n = MaxKeys + 1
	b := append(binary.AppendUvarint(make([]byte, idSize), n), make([]byte, 2*n)...)
	for _, op := range []opcode{opWait, opMultiGet, opMultiSet} {
		if _, q, err := parseRequest(byte(op), b); err == nil {
			t.Errorf("a %v of %d keys parsed", op, len(q.keys))
		}
	}
	for _, content := range []byte{contentMissing, contentValues} {
		reply := append(append(make([]byte, idSize), content), b[idSize:len(b)-n]...)
		if _, r, err := parseReply(byte(statusOK), reply); err == nil {
			t.Errorf("a reply with %d keys and %d values parsed", len(r.missing), len(r.values))
		}
	}
}

// FuzzParseRequest parses arbitrary bytes; what parses says the same when it
// is written and parsed again.
func FuzzParseRequest(f *testing.F) {
	for _, q := range []request{
		{op: opSet, keys: []string{"k"}, value: []byte("v")},
		{op: opAdd, keys: []string{"k"}, delta: -3},
		{op: opCAS, keys: []string{"k"}, expected: []byte("e"), value: []byte("v")},
		{op: opWait, keys: []string{"a", "b"}},
		{op: opCancel},
		{op: opAppend, keys: []string{"k"}, value: []byte("v")},
		{op: opMultiGet, keys: []string{"a", "b"}},
		{op: opMultiSet, keys: []string{"a", "b"}, values: [][]byte{[]byte("1"), {}}},
		{op: opPush, keys: []string{"q"}, value: []byte("v")},
		{op: opPop, keys: []string{"q"}},
		{op: opQueueLen, keys: []string{"q"}},
		{op: opNumKeys, keys: []string{""}},
	} {
		head, tail := appendRequest(nil, 1, &q)
		f.Add(byte(q.op), append(head, tail...))
	}
	f.Add(byte(opWait), append(make([]byte, 8), 255, 255, 255, 255, 255, 255, 255, 255, 255, 1))
	f.Add(byte(opMultiSet), append(make([]byte, 8), 2, 1, 'a', 1, 'b', 1, '1')) // a value is missing
	f.Fuzz(func(t *testing.T, kind byte, payload []byte) {
		id, q, err := parseRequest(kind, payload)
		if err != nil {
			return
		}
		head, tail := appendRequest(nil, id, &q)
		id2, q2, err := parseRequest(kind, append(head, tail...))
		if err != nil || id != id2 || !reflect.DeepEqual(q, q2) {
			t.Fatalf("%+v became %+v, %v", q, q2, err)
		}
	})
}

// FuzzParseReply is FuzzParseRequest for the other direction.
func FuzzParseReply(f *testing.F) {
	for _, r := range []reply{{status: statusOK}, {status: statusOK, value: []byte("v")}, {status: statusOK, number: 5},
		{status: statusCancelled, missing: []string{"a"}}, {status: statusOK, values: [][]byte{[]byte("a"), {}}}} {
		head, tail := appendReply(nil, 1, &r)
		f.Add(byte(r.status), append(head, tail...))
	}
	f.Fuzz(func(t *testing.T, kind byte, payload []byte) {
		id, r, err := parseReply(kind, payload)
		if err != nil {
			return
		}
		head, tail := appendReply(nil, id, &r)
		id2, r2, err := parseReply(kind, append(head, tail...))
		if r.missing != nil && len(r.missing) == 0 {
			r.missing, r2.missing = nil, nil
		}
		if err != nil || id != id2 || !reflect.DeepEqual(r, r2) {
			t.Fatalf("%+v became %+v, %v", r, r2, err)
		}
	})
}

// FuzzServer sends arbitrary bytes to a server, as a member of the job might:
// it must end the connection or answer, forget the client, and serve others.
func FuzzServer(f *testing.F) {
	frame := func(kind opcode, payload ...byte) []byte {
		near, far := transport.Pipe(proto)
		defer far.Close()
		near.WriteFrame(byte(kind), payload)
		b := make([]byte, 8+len(payload))
		far.Read(b)
		near.Close()
		return b
	}
	f.Add([]byte{})
	f.Add(frame(opGet, 1, 0, 0, 0, 0, 0, 0, 0, 1, 'k'))
	f.Add(frame(opSet, 1, 0, 0, 0, 0, 0, 0, 0, 1, 'k', 'v'))
	f.Add(frame(opPop, 1, 0, 0, 0, 0, 0, 0, 0, 1, 'k'))
	f.Add(bytes.Join([][]byte{frame(opPop, 1, 0, 0, 0, 0, 0, 0, 0, 1, 'q'), frame(opPush, 2, 0, 0, 0, 0, 0, 0, 0, 1, 'q', 'v')}, nil))
	f.Add(frame(opMultiSet, 1, 0, 0, 0, 0, 0, 0, 0, 2, 1, 'a', 1, 'b', 1, '1', 0))
	f.Add(frame(opMultiGet, 1, 0, 0, 0, 0, 0, 0, 0, 1, 1, 'a'))
	f.Add(bytes.Join([][]byte{frame(opGet, 1, 0, 0, 0, 0, 0, 0, 0, 1, 'k'), frame(opCancel, 1, 0, 0, 0, 0, 0, 0, 0)}, nil))
	f.Fuzz(func(t *testing.T, data []byte) {
		srv := &Server{mem: NewMemory(), conns: map[*transport.Conn]struct{}{}}
		near, far := transport.Pipe(proto)
		served := make(chan struct{})
		go func() {
			srv.serve(far)
			close(served)
		}()
		go func() {
			buf := make([]byte, 4096)
			for {
				if _, err := near.Read(buf); err != nil {
					return
				}
			}
		}()
		near.Write(data)
		c, other := transport.Pipe(proto)
		go srv.serve(other)
		client := newClient(c, "pipe")
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := client.Set(ctx, "mine", []byte("1")); err != nil {
			t.Fatal(err)
		}
		near.Close()
		<-served
		client.Close()
		srv.running.Wait()
		if len(srv.mem.m.calls) > 0 || len(srv.mem.m.waiting) > 0 || len(srv.mem.sinks) > 1 {
			t.Fatal("the server remembers a client that has gone")
		}
	})
}
