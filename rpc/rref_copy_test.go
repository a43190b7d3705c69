// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/tensor"
)

// tableValue has a field of which a copy would know nothing; wholeValue has one that
// is left out on purpose.
type (
	tableValue struct {
		Rows map[int]string
		Next []*tableRow
	}
	tableRow struct {
		Text string
		last int
	}
	wholeValue struct {
		Rows  []int
		At    time.Time
		X     *tensor.Tensor
		cache int `rpc:"-"`
	}
)

var (
	makeTable = NewMaker[int, *tableValue]("copy.table")
	makeWhole = NewMaker[int, *wholeValue]("copy.whole")
)

// TestPartialCopy: ToHere refuses a value of which fields would be lost, silently.
func TestPartialCopy(t *testing.T) {
	a := agents(t, "pipe", 2,
		ServeMaker(makeTable, func(context.Context, int) (*tableValue, error) {
			return &tableValue{Rows: map[int]string{1: "one"}, Next: []*tableRow{{last: 1}}}, nil
		}),
		ServeMaker(makeWhole, func(_ context.Context, n int) (*wholeValue, error) {
			return &wholeValue{Rows: []int{n}, X: tensor.Full(2, n), cache: 7}, nil
		}))
	ref, err := makeTable.Remote(t.Context(), a[0].Peer("w1"), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer ref.Release()
	if v, err := ref.ToHere(t.Context()); KindOf(err) != KindTypes || !strings.Contains(err.Error(), "tableRow.last") {
		t.Errorf("a table with rows that are not exported: %+v, %v; want kind %q and the field", v, err, KindTypes)
	}
	whole, err := makeWhole.Remote(t.Context(), a[0].Peer("w1"), 3)
	if err != nil {
		t.Fatal(err)
	}
	defer whole.Release()
	if v, err := whole.ToHere(t.Context()); err != nil || v.Rows[0] != 3 || v.cache != 0 || v.X.NumElems() != 3 {
		t.Errorf("a value with a field that says it stays: %+v, %v", v, err)
	}
}
