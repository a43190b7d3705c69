// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/data/tokenizer"
	"github.com/cohort-ml/cohort/internal/nearest"
)

// tokenizerTraining has the flags of cohort tokenize train.
type tokenizerTraining struct {
	from, out, end, split string
	vocab, sampleMB       int
}

func newTokenizeTrainCommand() *cobra.Command {
	o := tokenizerTraining{vocab: 32000, sampleMB: 64}
	cmd := &cobra.Command{
		Use:   "train --out FILE",
		Short: "Train a tokenizer on text",
		Long: `Train a tokenizer on text. Its vocabulary is over bytes: every text can be encoded
and decodes to the same bytes.

Training first splits the text into words, then learns pairs of tokens. --split
chooses how: as GPT-2 does, as Llama 3 does, or by a rule for source code and
small vocabularies. The same text gives the same tokenizer.`,
		Example: `  cohort tokenize train --data books --vocab 32000 --out tokenizer.json
  cohort tokenize train --split code --vocab 1024 --out tokenizer.json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	f := cmd.Flags()
	f.StringVar(&o.from, "data", "", "`PATH` of UTF-8 text, a file or a directory (default: the Go standard library's source)")
	f.StringVar(&o.out, "out", "tokenizer.json", "`FILE` to write")
	f.IntVar(&o.vocab, "vocab", o.vocab, "number of entries in the vocabulary")
	f.StringVar(&o.split, "split", "gpt2", "how text is split into words")
	oneOf(f, "split", "gpt2", "llama3", "code")
	f.StringVar(&o.end, "end-of-text", endOfText, "special `TOKEN` that ends a document; none: no such token")
	f.IntVar(&o.sampleMB, "sample", o.sampleMB, "learn from `N` megabytes of the text, in pieces spread evenly over it")
	return cmd
}

// run trains the tokenizer, writes it and says what it is like.
func (o *tokenizerTraining) run(cmd *cobra.Command) error {
	split, err := splitOf(o.split)
	if err != nil {
		return err
	}
	if o.sampleMB < 1 || o.sampleMB > 1<<14 {
		return usageError{fmt.Errorf("--sample is %d, want 1 to %d megabytes", o.sampleMB, 1<<14)}
	}
	size := o.vocab
	if o.end != noToken {
		size--
	}
	if size < 256 || size > tokenizer.MaxVocab {
		return usageError{fmt.Errorf("--vocab is %d, want 257 (the bytes and %s) to %d", o.vocab, endOfText, tokenizer.MaxVocab)}
	}
	began := time.Now()
	corpus, err := data.OpenCorpus(cmd.Context(), o.from)
	if err != nil {
		return err
	}
	sample, err := corpus.Train.Sample(o.sampleMB<<20, sampleBlock)
	if err != nil {
		return err
	}
	tok, err := tokenizer.TrainSplit(cmd.Context(), sample, size, split)
	if err != nil {
		return err
	}
	if o.end != noToken {
		if tok, err = tok.WithSpecial(o.end); err != nil {
			return err
		}
	}
	if err := writeTokenizer(o.out, tok); err != nil {
		return err
	}
	part := sample[:min(len(sample), 4<<20)]
	fmt.Fprintf(cmd.OutOrStdout(), "%s: %d tokens, learnt from %s of %s in %s; %.2f bytes a token\n", o.out, tok.Size(), data.ByteSize(len(sample)), corpus.Name,
		time.Since(began).Round(10*time.Millisecond), float64(len(part))/float64(max(len(tok.Encode(part)), 1)))
	if tok.Size() < o.vocab {
		fmt.Fprintf(cmd.ErrOrStderr(), "cohort: the text yields only %d tokens; --vocab asked for %d\n", tok.Size(), o.vocab)
	}
	return nil
}

// writeTokenizer writes a tokenizer.json. It makes the directory if it does not exist.
func writeTokenizer(path string, tok *tokenizer.Tokenizer) error {
	var b bytes.Buffer
	if err := tok.Write(&b); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, b.Bytes(), 0o644)
}

func splitOf(name string) (tokenizer.Split, error) {
	var names []string
	for _, s := range []tokenizer.Split{tokenizer.SplitGPT2, tokenizer.SplitLlama3, tokenizer.SplitCode} {
		if s.String() == name {
			return s, nil
		}
		names = append(names, s.String())
	}
	if best := nearest.Name(name, names); best != "" {
		return 0, unknown("split", name, names, "cohort tokenize train")
	}
	return 0, usageError{fmt.Errorf("--split is %q, want %s", name, strings.Join(names, ", "))}
}
