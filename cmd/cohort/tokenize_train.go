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
)

func newTokenizeTrainCommand() *cobra.Command {
	var from, out, end, split string
	vocab, sampleMB := 32000, 64
	cmd := &cobra.Command{
		Use:   "train --out FILE",
		Short: "Train a tokenizer on text",
		Long: `Train a tokenizer on text: a vocabulary over bytes, so that every text has tokens
and comes back as it was.

Text is parted into words before pairs of tokens are learnt: as GPT-2 does, as
Llama 3 does, or by a way of our own for source code and small vocabularies. The
same text gives the same tokenizer.`,
		Example: `  cohort tokenize train --data books --vocab 32000 --out tokenizer.json
  cohort tokenize train --split code --vocab 1024 --out tokenizer.json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := splitOf(split)
			if err != nil {
				return err
			}
			if sampleMB < 1 || sampleMB > 1<<14 {
				return usageError{fmt.Errorf("--sample is %d, want 1 to %d megabytes", sampleMB, 1<<14)}
			}
			size := vocab
			if end != noToken {
				size--
			}
			if size < 256 || size > tokenizer.MaxVocab {
				return usageError{fmt.Errorf("--vocab is %d, want 257 (the bytes and %s) to %d", vocab, endOfText, tokenizer.MaxVocab)}
			}
			began := time.Now()
			corpus, err := data.OpenCorpus(cmd.Context(), from)
			if err != nil {
				return err
			}
			sample, err := corpus.Train.Sample(sampleMB<<20, sampleBlock)
			if err != nil {
				return err
			}
			tok, err := tokenizer.TrainSplit(cmd.Context(), sample, size, s)
			if err != nil {
				return err
			}
			if end != noToken {
				if tok, err = tok.WithSpecial(end); err != nil {
					return err
				}
			}
			var b bytes.Buffer
			if err := tok.Write(&b); err != nil {
				return err
			}
			if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
				return err
			}
			if err := os.WriteFile(out, b.Bytes(), 0o644); err != nil {
				return err
			}
			part := sample[:min(len(sample), 4<<20)]
			fmt.Fprintf(cmd.OutOrStdout(), "%s: %d tokens of %s of %s in %s; %.2f bytes a token\n", out, tok.Size(), data.ByteSize(len(sample)), corpus.Name,
				time.Since(began).Round(10*time.Millisecond), float64(len(part))/float64(max(len(tok.Encode(part)), 1)))
			if tok.Size() < vocab {
				fmt.Fprintf(cmd.ErrOrStderr(), "cohort: the text repeats no more than %d tokens' worth; --vocab asked for %d\n", tok.Size(), vocab)
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&from, "data", "", "`file` or directory of UTF-8 text; default is the Go standard library's source")
	f.StringVar(&out, "out", "tokenizer.json", "`file` to write")
	f.IntVar(&vocab, "vocab", vocab, "entries of the vocabulary")
	f.StringVar(&split, "split", "gpt2", "how text is parted into words: `gpt2`, llama3 or code")
	f.StringVar(&end, "end-of-text", endOfText, "special `token` that ends a document; none for none")
	f.IntVar(&sampleMB, "sample", sampleMB, "`megabytes` of the text that are looked at, evenly spaced over it")
	return cmd
}

func splitOf(name string) (tokenizer.Split, error) {
	var names []string
	for _, s := range []tokenizer.Split{tokenizer.SplitGPT2, tokenizer.SplitLlama3, tokenizer.SplitCode} {
		if s.String() == name {
			return s, nil
		}
		names = append(names, s.String())
	}
	if best := nearest(name, names); best != "" {
		return 0, unknown("split", name, names, "cohort tokenize train")
	}
	return 0, usageError{fmt.Errorf("--split is %q, want %s", name, strings.Join(names, ", "))}
}
