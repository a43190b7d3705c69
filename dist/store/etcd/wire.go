// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// Limits on what a member may answer.
const (
	maxReply = 16 << 20 // bytes of one answer, or of one message of a watch
	maxWords = 300      // bytes of an error's text that are shown
)

// number is a 64-bit number, which the gateway writes as a text.
type number int64

func (n *number) UnmarshalJSON(text []byte) error {
	i, err := strconv.ParseInt(strings.Trim(string(text), `"`), 10, 64)
	*n = number(i)
	return err
}

func (n number) MarshalJSON() ([]byte, error) { return strconv.AppendInt(nil, int64(n), 10), nil }

// rangeRequest asks for the keys from Key to End; without End it is one key.
type rangeRequest struct {
	Key        []byte `json:"key"`
	End        []byte `json:"range_end,omitempty"`
	Limit      number `json:"limit,omitempty"`
	Revision   number `json:"revision,omitempty"`
	SortOrder  string `json:"sort_order,omitempty"`
	SortTarget string `json:"sort_target,omitempty"`
	KeysOnly   bool   `json:"keys_only,omitempty"`
	CountOnly  bool   `json:"count_only,omitempty"`
}

type putRequest struct {
	Key   []byte `json:"key"`
	Value []byte `json:"value"`
}

type deleteRequest struct {
	Key []byte `json:"key"`
}

// operation is one of a transaction's.
type operation struct {
	Range  *rangeRequest  `json:"request_range,omitempty"`
	Put    *putRequest    `json:"request_put,omitempty"`
	Delete *deleteRequest `json:"request_delete_range,omitempty"`
}

// compare is a condition of a transaction.
type compare struct {
	Key            []byte  `json:"key"`
	Result         string  `json:"result"`
	Target         string  `json:"target"`
	ModRevision    *number `json:"mod_revision,omitempty"`
	CreateRevision *number `json:"create_revision,omitempty"`
	Value          *[]byte `json:"value,omitempty"`
}

// unchanged is true of a key that was last changed at a revision; 0 is of a key that does not exist.
func unchanged(key string, rev number) compare {
	return compare{Key: []byte(key), Result: "EQUAL", Target: "MOD", ModRevision: &rev}
}

type txnRequest struct {
	Compare []compare   `json:"compare,omitempty"`
	Success []operation `json:"success,omitempty"`
	Failure []operation `json:"failure,omitempty"`
}

type watchRequest struct {
	Create struct {
		Key           []byte   `json:"key"`
		End           []byte   `json:"range_end,omitempty"`
		StartRevision number   `json:"start_revision"`
		Filters       []string `json:"filters"`
	} `json:"create_request"`
}

type header struct {
	Revision number `json:"revision"`
}

type keyValue struct {
	Key         []byte `json:"key"`
	Value       []byte `json:"value"`
	ModRevision number `json:"mod_revision"`
}

type rangeReply struct {
	Header header     `json:"header"`
	Kvs    []keyValue `json:"kvs"`
	Count  number     `json:"count"`
}

type deleteReply struct {
	Deleted number `json:"deleted"`
}

type txnReply struct {
	Header    header `json:"header"`
	Succeeded bool   `json:"succeeded"`
	Responses []struct {
		Range *rangeReply `json:"response_range"`
	} `json:"responses"`
}

// ranges returns the answers to a transaction's n operations, all of which read.
func (t *txnReply) ranges(n int) ([]*rangeReply, error) {
	if len(t.Responses) != n {
		return nil, fmt.Errorf("the member answers %d operations of %d", len(t.Responses), n)
	}
	list := make([]*rangeReply, n)
	for i, r := range t.Responses {
		if list[i] = r.Range; r.Range == nil {
			return nil, fmt.Errorf("the member does not answer what was read as operation %d", i)
		}
	}
	return list, nil
}

// watchReply is a message of a watch.
type watchReply struct {
	Created         bool       `json:"created"`
	Canceled        bool       `json:"canceled"`
	CancelReason    string     `json:"cancel_reason"`
	CompactRevision number     `json:"compact_revision"`
	Events          []struct{} `json:"events"`
}

// messages reads what a watch sends: JSON objects one after the other, each within the limit.
type messages struct {
	r    io.Reader
	left int64 // of this message
	err  error // of the reader
	d    *json.Decoder
}

func newMessages(r io.Reader) *messages {
	m := &messages{r: r}
	m.d = json.NewDecoder(m)
	return m
}

func (m *messages) Read(p []byte) (int, error) {
	if m.left <= 0 {
		m.err = errTooLong
		return 0, m.err
	}
	var n int
	n, m.err = m.r.Read(p[:min(int64(len(p)), m.left)])
	m.left -= int64(n)
	return n, m.err
}

// next reads one. An error of the member is a *Status.
func (m *messages) next() (watchReply, error) {
	var line struct {
		Result watchReply      `json:"result"`
		Error  json.RawMessage `json:"error"`
	}
	m.left = maxReply
	if err := m.d.Decode(&line); err != nil {
		if m.err == nil {
			return watchReply{}, &strangeError{200, shown([]byte(err.Error()))}
		}
		return watchReply{}, err
	}
	if line.Error != nil {
		return watchReply{}, parseStatus(line.Error, 0)
	}
	return line.Result, nil
}

var errTooLong = fmt.Errorf("an answer of more than %d bytes", maxReply)

// Codes of errors, which are gRPC's.
const (
	codeInvalid         = 3
	codeExhausted       = 8
	codeOutOfRange      = 11
	codeUnavailable     = 14
	codeUnauthenticated = 16
)

// Status is an error that a member of the cluster has answered.
type Status struct {
	Code    int // gRPC's
	Message string
	HTTP    int // the status of the answer, 0 within a watch
}

func (s *Status) Error() string { return s.Message }

// compacted reports whether a revision was asked for that the cluster has no more.
func compacted(err error) bool {
	var s *Status
	return errors.As(err, &s) && s.Code == codeOutOfRange && strings.Contains(s.Message, "compacted")
}

// tooLarge reports whether a request or its answer has more bytes or operations than the cluster takes.
func tooLarge(err error) bool {
	var s *Status
	return errors.Is(err, errTooLong) || errors.As(err, &s) && (s.Code == codeInvalid && (strings.Contains(s.Message, "too large") || strings.Contains(s.Message, "too many operations")) ||
		s.Code == codeExhausted && strings.Contains(s.Message, "larger than max"))
}

// parseStatus reads the error in an answer with this HTTP status. What no gateway of etcd has
// written gives another error than a *Status.
func parseStatus(text []byte, status int) error {
	var s struct {
		Code     int    `json:"code"`
		GRPCCode int    `json:"grpc_code"` // in the watches of servers before 3.6
		Message  string `json:"message"`
	}
	if err := json.Unmarshal(text, &s); err != nil || s.Message == "" {
		return &strangeError{status, shown(text)}
	}
	if s.Code == 0 {
		s.Code = s.GRPCCode
	}
	return &Status{s.Code, shown([]byte(s.Message)), status}
}

// strangeError is an answer that no gateway of etcd writes.
type strangeError struct {
	status int
	text   string
}

func (e *strangeError) Error() string {
	switch {
	case e.status == 404:
		return "has no JSON gateway (/v3/kv answers HTTP 404): start etcd 3.4 or later without --enable-grpc-gateway=false, and give the address of its --listen-client-urls"
	case e.status >= 300 && e.status < 400:
		return fmt.Sprintf("answers with HTTP %d, which sends elsewhere: give the address of a member itself", e.status)
	case strings.Contains(e.text, "HTTPS server"):
		return "speaks TLS: give it as https://HOST:PORT"
	}
	return fmt.Sprintf("is no etcd: it answers with HTTP %d, %q", e.status, e.text)
}

// shown makes a foreign text fit for a line of an error.
func shown(text []byte) string {
	text = bytes.TrimSpace(text)
	if len(text) > maxWords {
		text = text[:maxWords]
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(string(text), "?"))
}
