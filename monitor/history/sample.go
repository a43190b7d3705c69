// SPDX-License-Identifier: Apache-2.0

package history

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Bounds of records of samples.
const (
	MaxSamples       = 512       // records
	MaxSampleText    = 8 << 10   // bytes of a text; the rest is cut off
	MaxSamplePicture = 256 << 10 // bytes of a picture; a larger one is not kept
	maxSampleBytes   = 4 << 20   // of all texts, pictures and histograms together
)

// Sample is a text, a picture or a histogram that the program logs, or a text that the model wrote. Text
// beside a picture says what is in it.
type Sample struct {
	Step      int        `json:"step"`
	Time      Seconds    `json:"time"`
	Name      string     `json:"name"`
	Text      string     `json:"text,omitempty"`
	PNG       []byte     `json:"png,omitempty"` // in base64
	Histogram *Histogram `json:"histogram,omitempty"`
}

// Histogram says how values are distributed: Counts[i] of them lie between Edges[i] and Edges[i+1].
type Histogram struct {
	Count     int       `json:"count"` // that are finite
	NonFinite int       `json:"nonfinite,omitempty"`
	Min       float64   `json:"min"`
	Max       float64   `json:"max"`
	Mean      float64   `json:"mean"`
	Edges     []float64 `json:"edges"` // one more than Counts
	Counts    []float64 `json:"counts"`
}

// size is about how many bytes the record takes in the file.
func (s *Sample) size() int {
	n := 100 + len(s.Name) + len(s.Text) + len(s.PNG)*4/3
	if s.Histogram != nil {
		n += 16 * (len(s.Histogram.Edges) + len(s.Histogram.Counts))
	}
	return n
}

// check says what cannot be.
func (s *Sample) check() error {
	if s.Histogram != nil && (s.Text != "" || len(s.PNG) > 0) {
		return fmt.Errorf("sample %q: it is a histogram and something else", s.Name)
	}
	if h := s.Histogram; h != nil {
		if len(h.Edges) != len(h.Counts)+1 || len(h.Counts) > 4096 {
			return fmt.Errorf("sample %q: a histogram of %d counts has %d edges", s.Name, len(h.Counts), len(h.Edges))
		}
		if !slices.IsSorted(h.Edges) || h.Count < 0 || h.NonFinite < 0 || slices.ContainsFunc(h.Counts, func(n float64) bool { return n < 0 }) {
			return fmt.Errorf("sample %q: a histogram whose edges fall, or with a count below zero: this cannot be", s.Name)
		}
	}
	return nil
}

// errPicture says why a picture is not kept.
var errPicture = errors.New("its PNG is too large for the history")

// Sample notes a text, a picture or a histogram. Of a text it keeps the first MaxSampleText bytes. The error
// says why the sample is not kept.
func (w *Writer) Sample(s Sample) error {
	if len(s.PNG) > MaxSamplePicture {
		return fmt.Errorf("picture %q: %w: %d bytes, at most %d are kept", s.Name, errPicture, len(s.PNG), MaxSamplePicture)
	}
	if s.Text = strings.ToValidUTF8(s.Text, "\ufffd"); len(s.Text) > MaxSampleText {
		s.Text = strings.ToValidUTF8(s.Text[:MaxSampleText], "") + "…"
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.sampleBytes == 0 {
		for i := range w.h.Samples {
			w.sampleBytes += w.h.Samples[i].size()
		}
	}
	w.h.Samples = append(w.h.Samples, s)
	w.sampleBytes += s.size()
	w.add(s)
	for len(w.h.Samples) > MaxSamples || w.sampleBytes > maxSampleBytes && len(w.h.Samples) > 1 {
		w.thinSamples()
	}
	return nil
}

// thinSamples leaves every second sample of each name out, but for its last one. Where each name has one,
// the older half of all goes.
func (w *Writer) thinSamples() {
	of, seen := map[string]int{}, map[string]int{}
	for i := range w.h.Samples {
		of[w.h.Samples[i].Name]++
	}
	kept := make([]Sample, 0, len(w.h.Samples))
	for _, s := range w.h.Samples {
		if n := seen[s.Name]; (of[s.Name]-1-n)%2 == 0 {
			kept = append(kept, s)
		}
		seen[s.Name]++
	}
	if len(kept) == len(w.h.Samples) {
		kept = slices.Clone(kept[(len(kept)+1)/2:])
	}
	w.h.Samples, w.rewrite, w.sampleBytes = kept, true, 0
	for i := range kept {
		w.sampleBytes += kept[i].size()
	}
}
