// SPDX-License-Identifier: Apache-2.0

package autograd

import (
	"reflect"
	"testing"
)

var headers = []header{
	{context: 1},
	{context: 3<<counterBits | 7, life: 1<<63 + 5, walk: 2, first: 3<<counterBits | 1000, crossed: []int{0, 1, 5}, peers: []member{{0, 1<<64 - 1}, {2, 0}, {65535, 7}}},
	{context: 1<<64 - 1, walk: 1<<64 - 1, first: 1<<64 - 1, crossed: []int{7}},
}

func TestHeadersComeBack(t *testing.T) {
	for _, h := range headers {
		b := h.append(nil)
		got, err := parseHeader(b, 8)
		if err != nil || !reflect.DeepEqual(got, h) {
			t.Errorf("%+v came back as %+v, %v", h, got, err)
		}
		for n := range b {
			if _, err := parseHeader(b[:n], 8); err == nil {
				t.Errorf("%d of the %d bytes of %+v were taken", n, len(b), h)
			}
		}
		if _, err := parseHeader(append(b, 0), 8); err == nil {
			t.Error("a byte too many was taken")
		}
	}
	_, err := parseHeader([]byte{9}, 8)
	wantError(t, err, nil, "version [9]")
}

// FuzzHeader: whatever comes is refused, or names tensors and ranks that can be,
// in order, and is written in the same bytes' meaning again.
func FuzzHeader(f *testing.F) {
	for _, h := range headers {
		f.Add(h.append(nil), 8)
	}
	f.Fuzz(func(t *testing.T, b []byte, numTensors int) {
		numTensors = min(max(numTensors, 0), 1<<20)
		h, err := parseHeader(b, numTensors)
		if err != nil {
			return
		}
		var ranks []int
		for _, m := range h.peers {
			ranks = append(ranks, m.Rank)
		}
		for _, list := range [][]int{h.crossed, ranks} {
			for i, v := range list {
				if v < 0 || i > 0 && v <= list[i-1] {
					t.Errorf("%v does not increase", list)
				}
			}
		}
		if n := len(h.crossed); n > 0 && h.crossed[n-1] >= numTensors {
			t.Errorf("names tensor %d of %d", h.crossed[n-1], numTensors)
		}
		again, err := parseHeader(h.append(nil), numTensors)
		if err != nil || !reflect.DeepEqual(again, h) {
			t.Errorf("%+v came back as %+v, %v", h, again, err)
		}
	})
}
