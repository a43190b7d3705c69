// SPDX-License-Identifier: Apache-2.0

package sequences

import (
	"flag"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/data/tokenizer"
)

var (
	benchRecords = flag.String("records", "", "file of BenchmarkSequences")
	benchModel   = flag.String("model", "../../train/testdata/finetune/llama", "folder with the tokenizer of BenchmarkSequences")
	benchWorkers = flag.Int("workers", 2, "of BenchmarkSequences")
)

// BenchmarkSequences goes through the shuffled records of a file once, with the tokenizer, in batches of
// 32. tools/compare_records.py runs it beside datasets and a DataLoader.
func BenchmarkSequences(b *testing.B) {
	if *benchRecords == "" {
		b.Skip("needs -records FILE")
	}
	tok, err := tokenizer.Load(*benchModel)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		d, err := Open(b.Context(), []Source{{*benchRecords, 1}}, Options{Tokenizer: tok, EndOfText: -1, Context: 1 << 19})
		if err != nil {
			b.Fatal(err)
		}
		sampler, err := d.Sampler(32, 0, 1, 1)
		if err != nil {
			b.Fatal(err)
		}
		l, err := data.NewLoader(b.Context(), d, sampler, data.CollateSequences(1<<19, 16), data.LoaderConfig{Workers: *benchWorkers}, data.LoaderState{})
		if err != nil {
			b.Fatal(err)
		}
		tokens, begin := 0, time.Now()
		for range d.Len() / 32 {
			batch, err := l.Next(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			tokens += batch.Counted
		}
		b.ReportMetric(float64(tokens), "tokens")
		b.ReportMetric(float64(d.Len()/32*32)/time.Since(begin).Seconds(), "records/s")
		l.Close()
		d.Close()
	}
}
