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

// encoding has the flags of cohort tokenize encode.
type encoding struct {
	data.EncodeConfig
	tokenizer, from, out, end string
	special                   bool
}

func newTokenizeEncodeCommand() *cobra.Command {
	var o encoding
	cmd := &cobra.Command{
		Use:   "encode --tokenizer PATH",
		Short: "Encode text to token shards, or standard input to ids",
		Long: `Encode text, which may be larger than memory, to token shards in a directory.
cohort train lm --data DIR trains on them.

A 20th of the text is held out for validation. It is the same part that training
on the text itself holds out. Every file is a document. Where files are few, the
held-out blocks are cut out of files, and each remaining part of a file is a
document.

Without --out, the command encodes standard input and prints the ids.`,
		Example: `  cohort tokenize encode --tokenizer tokenizer.json --data books --out tokens
  echo 'Hello, world!' | cohort tokenize encode --tokenizer tokenizer.json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	f := cmd.Flags()
	f.StringVar(&o.tokenizer, "tokenizer", "", "`PATH` of a tokenizer.json, or of a model's folder with a tokenizer")
	f.StringVar(&o.from, "data", "", "`PATH` of UTF-8 text, a file or a directory (default: the Go standard library's source)")
	f.StringVar(&o.out, "out", "", "write the tokens to `DIR` (default: encode standard input and print the ids)")
	f.StringVar(&o.end, "end-of-text", "auto", "`TOKEN` after each document; auto: the tokenizer's own, if it has one; none: no token")
	f.IntVar(&o.Workers, "workers", 0, "number of goroutines that encode; 0: one for each processor")
	f.Int64Var(&o.ShardTokens, "shard-tokens", 1<<27, "number of tokens in a shard")
	f.BoolVar(&o.special, "special", false, "with standard input: add the special tokens that the tokenizer's file asks for")
	return cmd
}

func (o *encoding) run(cmd *cobra.Command) error {
	switch {
	case o.tokenizer == "":
		return usageError{errors.New("--tokenizer must name a tokenizer.json, or a folder with one")}
	case o.Workers < 0 || o.ShardTokens < 1:
		return usageError{fmt.Errorf("--workers is %d and --shard-tokens is %d: want 0 or more, and 1 or more", o.Workers, o.ShardTokens)}
	case o.out == "" && cmd.Flags().Changed("data"):
		return usageError{errors.New("--data needs --out, the directory for the tokens (without both, standard input is encoded)")}
	}
	tok, err := tokenizer.Load(o.tokenizer)
	if err != nil {
		return err
	}
	if o.out == "" {
		return o.encodeInput(cmd, tok)
	}
	return o.encodeText(cmd, tok)
}

// encodeInput prints the ids of standard input.
func (o *encoding) encodeInput(cmd *cobra.Command, tok *tokenizer.Tokenizer) error {
	text, err := io.ReadAll(cmd.InOrStdin())
	if err != nil {
		return fmt.Errorf("standard input: %w", err)
	}
	ids := tok.Encode(text)
	if o.special {
		ids = tok.EncodeInput(text)
	}
	return printIDs(cmd.OutOrStdout(), ids)
}

// encodeText writes token shards of a text, until it is interrupted.
func (o *encoding) encodeText(cmd *cobra.Command, tok *tokenizer.Tokenizer) (err error) {
	if o.EndOfText, err = endToken(tok, o.end); err != nil {
		return usageError{err}
	}
	corpus, err := data.OpenCorpus(cmd.Context(), o.from)
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
	stats, err := data.EncodeShards(ctx, corpus, tok, o.out, o.EncodeConfig)
	bar.end()
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("stopped: %s is not complete; encoding again starts anew", o.out)
	}
	if err != nil {
		return err
	}
	seconds := max(stats.Elapsed.Seconds(), 1e-9)
	fmt.Fprintf(cmd.OutOrStdout(), "%s: %d tokens of %d documents, %s of text, in %d %s; %.2f bytes a token, %.1f MB/s\n", o.out, stats.Tokens, stats.Documents,
		data.ByteSize(stats.Bytes), stats.Shards, shards(stats.Shards), float64(stats.Bytes)/float64(max(stats.Tokens, 1)), float64(stats.Bytes)/1e6/seconds)
	return nil
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
