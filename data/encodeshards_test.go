// SPDX-License-Identifier: Apache-2.0

package data

import (
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/data/tokenizer"
)

// A text that can be parted only far behind its beginning leaves more for the
// next piece than a piece is usually long.
func TestEncodeFewCuts(t *testing.T) {
	const part = 2*encodePiece + 10
	text := strings.Repeat("x", part) + " y" + strings.Repeat("z", part) + " w"
	tok := smallTokenizer(t, tokenizer.SplitGPT2)
	c := &Corpus{Name: "long words", Train: NewText("long", []byte(text)), Validation: NewText("short", []byte("rank group"))}
	_, s := encoded(t, c, tok, EncodeConfig{Workers: 2, EndOfText: -1})
	defer s.Close()
	got := make([]int64, s.Train.Len())
	if _, err := s.Train.ReadAt(got, 0); err != nil {
		t.Fatal(err)
	}
	if want := tok.Encode([]byte(text)); !slices.Equal(got, want) {
		t.Errorf("%d tokens, want %d, or others", len(got), len(want))
	}
}
