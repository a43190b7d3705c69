// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"encoding/hex"
	"os"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/cohort-ml/cohort/rpc/internal/link"
	"github.com/cohort-ml/cohort/rpc/internal/wire"
	"github.com/cohort-ml/cohort/tensor"
)

// TestDocumentedCall: the call that docs/rpc-wire.md shows is what is sent.
func TestDocumentedCall(t *testing.T) {
	text, err := os.ReadFile("../docs/rpc-wire.md")
	if err != nil {
		t.Fatal(err)
	}
	_, example, _ := strings.Cut(string(text), "byte by byte")
	var want []byte
	for line := range strings.Lines(example) {
		if !strings.HasPrefix(line, "    ") {
			continue
		}
		for _, word := range strings.Fields(line) {
			b, err := hex.DecodeString(word)
			if err != nil || len(word) != 2 {
				break
			}
			want = append(want, b...)
		}
	}
	type args struct{ X *tensor.Tensor }
	a := newAgent("a", &options{maxMessage: DefaultMaxMessage})
	p := &Peer{agent: a, name: "b"}
	began := time.Now()
	c := &link.Call{ID: 1, Began: began, Deadline: began.Add(time.Second), Conn: &link.ClientConn{Limit: DefaultMaxMessage}}
	in := args{tensor.FromFloat32([]float32{1, 2})}
	m := wire.New(wire.FrameCall, p)
	plan := planOf[args]("request", "math.neg")
	if err := encodeCall(t.Context(), m, &methodInfo{name: "math.neg"}, p, c, callExtras{}, plan, unsafe.Pointer(&in)); err != nil {
		t.Fatal(err)
	}
	if got := m.AppendTo(nil); hex.EncodeToString(got) != hex.EncodeToString(want) {
		t.Errorf("the document has\n%x, sent is\n%x", want, got)
	}
}
