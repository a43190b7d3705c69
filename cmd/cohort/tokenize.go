// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/data/tokenizer"
)

func newTokenizeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "tokenize COMMAND",
		Short: "Train tokenizers, and turn text into tokens and back",
		Long: `Train tokenizers, and turn text into tokens and back.

Tokenizers are files of the form of Hugging Face's tokenizer.json, or folders of
models with such a file or with GPT-2's vocab.json and merges.txt. The tokens are
those that the Hugging Face libraries give.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return unknown("command", args[0], commandNames(cmd), cmd.CommandPath())
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newTokenizeTrainCommand(), newTokenizeEncodeCommand(), newTokenizeDecodeCommand())
	return cmd
}

const (
	endOfText   = "<|endoftext|>"
	noToken     = "none"
	sampleBlock = 64 << 10 // bytes that a sample takes in one place
	maxDecode   = 1 << 20  // ids that are decoded at a time
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

func newTokenizeDecodeCommand() *cobra.Command {
	var tokPath, from string
	var skip bool
	var first int64
	num := int64(200)
	cmd := &cobra.Command{
		Use:   "decode --tokenizer FILE | --data DIR",
		Short: "Decode ids from standard input, or a part of token shards, to text",
		Example: `  echo '15496 11 995 0' | cohort tokenize decode --tokenizer gpt2
  cohort tokenize decode --data tokens --first 1000 --tokens 50`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case (tokPath == "") == (from == ""):
				return usageError{errors.New("one of --tokenizer, for ids on standard input, and --data, for token shards, must be given")}
			case first < 0 || num < 1:
				return usageError{fmt.Errorf("--first is %d and --tokens is %d: want 0 or more, and 1 or more", first, num)}
			case from != "":
				return decodeShards(cmd, from, first, num, skip)
			}
			tok, err := tokenizer.Load(tokPath)
			if err != nil {
				return err
			}
			var ids []int64
			in := bufio.NewScanner(cmd.InOrStdin())
			in.Split(bufio.ScanWords)
			for in.Scan() {
				id, err := strconv.ParseInt(in.Text(), 10, 64)
				if err != nil {
					return fmt.Errorf("standard input: word %d, %q, is no id", len(ids)+1, in.Text())
				}
				ids = append(ids, id)
			}
			if err := in.Err(); err != nil {
				return fmt.Errorf("standard input: %w", err)
			}
			return writeDecoded(cmd.OutOrStdout(), tok, ids, skip)
		},
	}
	f := cmd.Flags()
	f.StringVar(&tokPath, "tokenizer", "", "`file` or folder of the tokenizer")
	f.StringVar(&from, "data", "", "`directory` of token shards")
	f.Int64Var(&first, "first", 0, "with --data: the `token` to begin with")
	f.Int64Var(&num, "tokens", num, "with --data: `number` of tokens")
	f.BoolVar(&skip, "skip-special", false, "leave special tokens out")
	return cmd
}

func writeDecoded(w io.Writer, tok *tokenizer.Tokenizer, ids []int64, skip bool) error {
	decode := tok.Decode
	if skip {
		decode = tok.DecodeText
	}
	text, err := decode(ids)
	if err != nil {
		return err
	}
	_, err = w.Write(text)
	return err
}

// writeInner is writeDecoded of ids that others come before: the space that a
// decoder takes off the beginning of a text is not at theirs.
func writeInner(w io.Writer, tok *tokenizer.Tokenizer, ids []int64, skip bool) error {
	var text []byte
	for _, id := range ids {
		if !skip || !tok.Special(id) {
			text = append(text, tok.Token(id)...)
		}
	}
	_, err := w.Write(text)
	return err
}

func decodeShards(cmd *cobra.Command, dir string, first, num int64, skip bool) error {
	s, err := data.OpenShards(dir)
	if err != nil {
		return err
	}
	defer s.Close()
	if first >= s.Train.Len() {
		return usageError{fmt.Errorf("--first is %d, %s has %d tokens to train on", first, dir, s.Train.Len())}
	}
	for end := first + min(num, s.Train.Len()-first); first < end; {
		ids := make([]int64, min(end-first, maxDecode))
		if _, err := s.Train.ReadAt(ids, first); err != nil {
			return err
		}
		decode := writeDecoded
		if first > 0 {
			decode = writeInner
		}
		if err := decode(cmd.OutOrStdout(), s.Tokenizer, ids, skip); err != nil {
			return err
		}
		first += int64(len(ids))
	}
	_, err = fmt.Fprintln(cmd.OutOrStdout())
	return err
}

// progressBar shows how far something is: on a terminal one line that is
// written over, elsewhere a line every few seconds.
type progressBar struct {
	w        io.Writer
	terminal bool
	began    time.Time
	last     time.Time
	open     bool
}

func newProgressBar(w io.Writer) *progressBar {
	f, ok := w.(*os.File)
	return &progressBar{w: w, terminal: ok && term.IsTerminal(int(f.Fd())), began: time.Now(), last: time.Now()}
}

func (p *progressBar) show(done, total int64) {
	every := 5 * time.Second
	if p.terminal {
		every = 0
	}
	now := time.Now()
	if now.Sub(p.last) < every || total == 0 {
		return
	}
	p.last = now
	elapsed := now.Sub(p.began)
	rate := float64(done) / max(elapsed.Seconds(), 1e-3)
	left := time.Duration(float64(total-done) / max(rate, 1) * float64(time.Second)).Round(time.Second)
	const width = 30
	full := int(width * done / total)
	line := fmt.Sprintf("%3d %% %7.1f of %.1f MB  %.1f MB/s  %s left", 100*done/total, float64(done)/1e6, float64(total)/1e6, rate/1e6, left)
	if !p.terminal {
		fmt.Fprintln(p.w, line)
		return
	}
	bar := "[" + string(bytes.Repeat([]byte{'='}, full)) + string(bytes.Repeat([]byte{' '}, width-full)) + "] "
	fmt.Fprint(p.w, "\r\x1b[K"+bar+line)
	p.open = true
}

// end leaves the last picture on the screen.
func (p *progressBar) end() {
	if p.open {
		fmt.Fprintln(p.w)
		p.open = false
	}
}

func shards(n int) string {
	if n == 1 {
		return "shard"
	}
	return "shards"
}
