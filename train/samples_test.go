// SPDX-License-Identifier: Apache-2.0

package train

import (
	"bytes"
	"image/color"
	"image/png"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/data/vision"
	"github.com/cohort-ml/cohort/monitor/history"
)

// TestEvaluationsShowImages: each evaluation of images keeps a picture of the first ones, with their pixels,
// and says what each was taken for.
func TestEvaluationsShowImages(t *testing.T) {
	c := smallVision(t)
	if err := trainVision(t.Context(), c, nil, 2, newLog()); err != nil {
		t.Fatal(err)
	}
	h, err := history.ReadDir(c.Out)
	if err != nil {
		t.Fatal(err)
	}
	_, test, err := vision.Digits()
	if err != nil {
		t.Fatal(err)
	}
	var seen []int
	for _, s := range h.Samples {
		if s.Name != "classified" {
			continue
		}
		seen = append(seen, s.Step)
		m, err := png.Decode(bytes.NewReader(s.PNG))
		if err != nil {
			t.Fatal(err)
		}
		texts := strings.Split(s.Text, "; ")
		if len(texts) != shownImages {
			t.Fatalf("%q is about %d images", s.Text, len(texts))
		}
		for i, text := range texts {
			image, err := test.Get(t.Context(), data.Key{Index: i})
			if err != nil {
				t.Fatal(err)
			}
			w, h := image.Image.Width, image.Image.Height
			left := i * (w + shownImageMargin)
			for y := range h {
				for x := range w {
					want := int(image.Image.Pix[(y*w+x)*image.Image.Channels])
					if got := color.GrayModel.Convert(m.At(left+x, y)).(color.Gray).Y; abs(int(got)-want) > 1 {
						t.Fatalf("image %d, pixel %d %d: got %d, want %d", i, x, y, got, want)
					}
				}
			}
			r, g, _, _ := m.At(left, h+shownImageMargin).RGBA()
			if wrong := strings.Contains(text, ", taken for "); wrong != (r > g) {
				t.Errorf("%q has the colour of another", text)
			}
			if !strings.HasPrefix(text, string(rune('1'+i))+": "+test.Classes()[image.Label]) {
				t.Errorf("image %d: got %q, want class %s", i, text, test.Classes()[image.Label])
			}
		}
	}
	if len(seen) < 2 {
		t.Errorf("pictures of the steps %v, want one of each evaluation", seen)
	}
}

func abs(v int) int { return max(v, -v) }

// TestEvaluationsShowText: at each evaluation the model writes, beginning with the prompt, and not where
// nobody asks for a sample.
func TestEvaluationsShowText(t *testing.T) {
	for _, tokens := range []int{5, 0} {
		c := tiny(t, writeText(t, 3000))
		c.SampleTokens = tokens
		if _, err := run(t, 2, c); err != nil {
			t.Fatal(err)
		}
		h, err := history.ReadDir(c.Out)
		if err != nil {
			t.Fatal(err)
		}
		steps := map[int]bool{}
		for _, s := range h.Samples {
			if s.Name != "sample" || !strings.HasPrefix(s.Text, c.Prompt) || len(s.Text) <= len(c.Prompt) {
				t.Errorf("got %+v", s)
			}
			steps[s.Step] = true
		}
		if want := map[bool]int{true: 2, false: 0}[tokens > 0]; len(steps) != want {
			t.Errorf("%d tokens: texts of the steps %v, want %d", tokens, steps, want)
		}
	}
}
