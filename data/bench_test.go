// SPDX-License-Identifier: Apache-2.0

package data

import (
	"context"
	"fmt"
	"syscall"
	"testing"

	"github.com/cohort-ml/cohort/data/tokenizer"
)

// standardLibrary opens the real corpus, or skips where there is no Go.
func standardLibrary(tb testing.TB) *Corpus {
	tb.Helper()
	c, err := OpenStandardLibrary(context.Background())
	if err != nil {
		tb.Skip(err)
	}
	return c
}

// BenchmarkFirstBatch is what stands between the command and the first
// training step: find the corpus, train the tokenizer, make a batch.
//
//	go test -run - -bench FirstBatch -cpu 1,2 ./data
func BenchmarkFirstBatch(b *testing.B) {
	standardLibrary(b)
	ctx := context.Background()
	for b.Loop() {
		c, err := OpenCorpus(ctx, "")
		if err != nil {
			b.Fatal(err)
		}
		tok, err := TrainTokenizer(ctx, c.Train, 1024)
		if err != nil {
			b.Fatal(err)
		}
		w, err := NewWindows(c.Train, tok, 256)
		if err != nil {
			b.Fatal(err)
		}
		s, err := NewStream(StreamConfig{Len: w.Len(), Batch: 16, World: 1, Shuffle: true})
		if err != nil {
			b.Fatal(err)
		}
		l, err := NewLoader(ctx, w, s, CollateTokens, LoaderConfig{}, LoaderState{})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := l.Next(ctx); err != nil {
			b.Fatal(err)
		}
		l.Close()
	}
}

func BenchmarkOpenStandardLibrary(b *testing.B) {
	for b.Loop() {
		standardLibrary(b)
	}
}

func BenchmarkTrainTokenizer(b *testing.B) {
	c := standardLibrary(b)
	for b.Loop() {
		if _, err := TrainTokenizer(context.Background(), c.Train, 1024); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkNewWindows(b *testing.B) {
	c := standardLibrary(b)
	tok, err := TrainTokenizer(context.Background(), c.Train, 1024)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := NewWindows(c.Train, tok, 256); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkWindow is one sample; a step needs a batch of them.
func BenchmarkWindow(b *testing.B) {
	c := standardLibrary(b)
	tok, err := TrainTokenizer(context.Background(), c.Train, 1024)
	if err != nil {
		b.Fatal(err)
	}
	w, err := NewWindows(c.Train, tok, 256)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(w.Stride())
	i := 0
	for b.Loop() {
		if _, err := w.Get(context.Background(), Key{0, i * 7919 % w.Len()}); err != nil {
			b.Fatal(err)
		}
		i++
	}
}

// TestCorpusFigures prints what there is to know about the standard library's
// source: run it with -v. It fails where a figure is far from what the recipe
// was made for.
func TestCorpusFigures(t *testing.T) {
	if testing.Short() {
		t.Skip("reads the whole corpus")
	}
	ctx := context.Background()
	c := standardLibrary(t)
	share := float64(c.Validation.Size()) / float64(c.Train.Size()+c.Validation.Size())
	t.Logf("%s: %d files, %d bytes for training; %d files, %d bytes (%.1f%%) for validation; %d files skipped",
		c.Name, c.Train.NumFiles(), c.Train.Size(), c.Validation.NumFiles(), c.Validation.Size(), 100*share, c.Skipped)
	if share < 0.025 || share > 0.055 {
		t.Errorf("%.3f of the text is for validation", share)
	}
	var tok *tokenizer.Tokenizer
	for _, vocab := range []int{512, 1024, 2048} {
		var err error
		if tok, err = TrainTokenizer(ctx, c.Train, vocab); err != nil {
			t.Fatal(err)
		}
		v, err := NewValidation(c.Validation, tok, 256, 1<<30)
		if err != nil {
			t.Fatal(err)
		}
		first, err := NewValidation(c.Validation, tok, 256, 64<<10)
		if err != nil {
			t.Fatal(err)
		}
		gz, err := v.GzipBitsPerByte()
		if err != nil {
			t.Fatal(err)
		}
		gzFirst, err := first.GzipBitsPerByte()
		if err != nil {
			t.Fatal(err)
		}
		w, err := NewWindows(c.Train, tok, 256)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("vocabulary %d: %.3f bytes a token on all validation text (gzip -9: %.3f bits a byte), %.3f on its first %d windows (%.3f); %d windows of %d bytes an epoch, train %.3f bytes a token",
			vocab, float64(v.Bytes())/float64(v.Len()*256), gz, float64(first.Bytes())/float64(first.Len()*256), first.Len(), gzFirst, w.Len(), w.Stride(), float64(w.Stride())/256)
		if vocab != 1024 {
			continue
		}
		covered := make([]bool, c.Train.Size())
		for epoch := range 2 {
			for i := range w.Len() {
				s, err := w.Get(ctx, Key{epoch, i})
				if err != nil {
					t.Fatal(err)
				}
				for j := range s.Bytes {
					covered[(s.Start+int64(tok.Len(s.Tokens[0])+j))%c.Train.Size()] = true
				}
			}
			n := 0
			for _, b := range covered {
				if b {
					n++
				}
			}
			got := float64(n) / float64(len(covered))
			t.Logf("  targets of %d epochs cover %.2f%% of the text", epoch+1, 100*got)
			if want := []float64{0.92, 0.99}[epoch]; got < want {
				t.Errorf("%d epochs cover %.3f of the text, want %v", epoch+1, got, want)
			}
		}
	}
}

// BenchmarkLoader is what a loader adds to a batch of 64 samples that cost
// nothing, and how often a thread of the process went to sleep for it.
//
//	go test -run - -bench Loader -cpu 2 ./data
func BenchmarkLoader(b *testing.B) {
	ds := FromSlice(make([]int, 1<<16))
	collate := func(s []int) (int, error) { return len(s), nil }
	for _, workers := range []int{0, 1, 4} {
		b.Run(fmt.Sprintf("workers=%d", workers), func(b *testing.B) {
			s, err := NewStream(StreamConfig{Len: ds.Len(), Batch: 64, World: 1})
			if err != nil {
				b.Fatal(err)
			}
			ctx := context.Background()
			l, err := NewLoader(ctx, ds, s, collate, LoaderConfig{Workers: workers}, LoaderState{})
			if err != nil {
				b.Fatal(err)
			}
			defer l.Close()
			before := sleeps()
			b.ReportAllocs()
			for b.Loop() {
				if _, err := l.Next(ctx); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(sleeps()-before)/float64(b.N), "sleeps/op")
		})
	}
}

// sleeps counts how often threads have waited.
func sleeps() int64 {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return int64(u.Nvcsw)
}

// BenchmarkOrderLogStep is a step of 64 samples.
func BenchmarkOrderLogStep(b *testing.B) {
	l, err := OpenOrderLog(b.TempDir(), 0)
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	if err := l.Begin(OrderAttempt{Attempt: 1, World: 1, Batch: 64, From: LoaderState{Order: "none"}}); err != nil {
		b.Fatal(err)
	}
	keys := make([]Key, 64)
	step := 0
	b.ReportAllocs()
	for b.Loop() {
		step++
		l.Add(keys, nil)
		if err := l.Step(step, int64(64*step)); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkCheckOrder is the check of a run of 8 ranks, 20,000 steps of 256
// samples and 80 epochs.
func BenchmarkCheckOrder(b *testing.B) {
	dir := b.TempDir()
	const world, batch, steps, n = 8, 32, 20000, 64000
	for rank := range world {
		l, err := OpenOrderLog(dir, rank)
		if err != nil {
			b.Fatal(err)
		}
		s, err := NewStream(StreamConfig{Len: n, Batch: batch, Rank: rank, World: world, Shuffle: true})
		if err != nil {
			b.Fatal(err)
		}
		if err := l.Begin(OrderAttempt{Attempt: 1, World: world, Batch: batch, From: LoaderState{Order: s.Order()}}); err != nil {
			b.Fatal(err)
		}
		var keys []Key
		pos := int64(0)
		for step := range steps {
			keys, pos = s.Batch(keys[:0], pos)
			l.Add(keys, nil)
			if err := l.Step(step+1, pos); err != nil {
				b.Fatal(err)
			}
		}
		if err := l.Close(); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		r, err := CheckOrder(dir, CheckOptions{Steps: steps})
		if err != nil || r.Err() != nil {
			b.Fatal(err, r.Err())
		}
	}
	b.ReportMetric(float64(b.N)*world*steps/b.Elapsed().Seconds(), "lines/s")
	b.ReportMetric(float64(b.N)*world*batch*steps/b.Elapsed().Seconds(), "samples/s")
}
