// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/data/tokenizer"
)

func newTokenizeEncodeCommand() *cobra.Command {
	var tokPath, from, out, end string
	var input bool
	var o data.EncodeConfig
	cmd := &cobra.Command{
		Use:   "encode --tokenizer FILE",
		Short: "Encode a corpus to token shards, or standard input to ids",
		Long: `Encode a corpus, which may be larger than memory, to token shards in a directory:
cohort train lm --data DIR trains on them. A 20th of the text is for validation,
the same as when the text itself is trained on. Every file is a document; so is
each part of a file between blocks that go to validation, which are taken out of
files where these are few.

Without --out, standard input is encoded and its ids are printed.`,
		Example: `  cohort tokenize encode --tokenizer tokenizer.json --data books --out tokens
  echo 'Hello, world!' | cohort tokenize encode --tokenizer tokenizer.json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if tokPath == "" {
				return usageError{errors.New("--tokenizer must name a tokenizer.json, or a folder with one")}
			}
			if o.Workers < 0 || o.ShardTokens < 1 {
				return usageError{fmt.Errorf("--workers is %d and --shard-tokens is %d: want 0 or more, and 1 or more", o.Workers, o.ShardTokens)}
			}
			if out == "" && cmd.Flags().Changed("data") {
				return usageError{errors.New("--data needs --out, the directory for the tokens (without both, standard input is encoded)")}
			}
			tok, err := tokenizer.Load(tokPath)
			if err != nil {
				return err
			}
			if out == "" {
				text, err := io.ReadAll(cmd.InOrStdin())
				if err != nil {
					return fmt.Errorf("standard input: %w", err)
				}
				ids := tok.Encode(text)
				if input {
					ids = tok.EncodeInput(text)
				}
				return printIDs(cmd.OutOrStdout(), ids)
			}
			if o.EndOfText, err = endToken(tok, end); err != nil {
				return usageError{err}
			}
			corpus, err := data.OpenCorpus(cmd.Context(), from)
			if err != nil {
				return err
			}
			if note := corpus.Note(); note != "" {
				fmt.Fprintf(cmd.ErrOrStderr(), "cohort: %s\n", note)
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			bar := newProgressBar(cmd.ErrOrStderr())
			o.Progress = bar.show
			stats, err := data.EncodeShards(ctx, corpus, tok, out, o)
			bar.end()
			if err != nil && ctx.Err() != nil {
				return fmt.Errorf("stopped: %s is not complete; encoding again starts anew", out)
			}
			if err != nil {
				return err
			}
			seconds := max(stats.Elapsed.Seconds(), 1e-9)
			fmt.Fprintf(cmd.OutOrStdout(), "%s: %d tokens of %d documents, %s of text, in %d %s; %.2f bytes a token, %.1f MB/s\n", out, stats.Tokens, stats.Documents,
				data.ByteSize(stats.Bytes), stats.Shards, shards(stats.Shards), float64(stats.Bytes)/float64(max(stats.Tokens, 1)), float64(stats.Bytes)/1e6/seconds)
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&tokPath, "tokenizer", "", "`file` or folder of the tokenizer")
	f.StringVar(&from, "data", "", "`file` or directory of UTF-8 text; default is the Go standard library's source")
	f.StringVar(&out, "out", "", "`directory` for the tokens")
	f.StringVar(&end, "end-of-text", "auto", "`token` after each document; auto is the tokenizer's own if it has one, none is none")
	f.IntVar(&o.Workers, "workers", 0, "goroutines that encode; 0 is one for each processor")
	f.Int64Var(&o.ShardTokens, "shard-tokens", 1<<27, "tokens of a file")
	f.BoolVar(&input, "special", false, "with standard input: put the special tokens around it that the tokenizer's file asks for")
	return cmd
}

// endToken returns the id of the token after each document, -1 for none.
func endToken(tok *tokenizer.Tokenizer, name string) (int64, error) {
	switch name {
	case noToken:
		return -1, nil
	case "auto":
		if id, ok := tok.EndOfText(); ok {
			return id, nil
		}
		return -1, nil
	}
	id, ok := tok.ID(name)
	if !ok {
		return 0, fmt.Errorf("--end-of-text is %q, which is no token of this tokenizer", name)
	}
	return id, nil
}

func printIDs(w io.Writer, ids []int64) error {
	b := bufio.NewWriter(w)
	for i, id := range ids {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(strconv.FormatInt(id, 10))
	}
	b.WriteByte('\n')
	return b.Flush()
}

func shards(n int) string {
	if n == 1 {
		return "shard"
	}
	return "shards"
}
