// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/data/tokenizer"
)

func newTokenizeDecodeCommand() *cobra.Command {
	var tokPath, from string
	var skip bool
	var first int64
	num := int64(200)
	cmd := &cobra.Command{
		Use:   "decode --tokenizer PATH|--data DIR",
		Short: "Decode ids from standard input, or a part of token shards, to text",
		Example: `  echo '15496 11 995 0' | cohort tokenize decode --tokenizer gpt2
  cohort tokenize decode --data tokens --first 1000 --tokens 50`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case (tokPath == "") == (from == ""):
				return usageError{errors.New("give either --tokenizer, for ids on standard input, or --data, for token shards")}
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
	f.StringVar(&tokPath, "tokenizer", "", "`PATH` of a tokenizer.json, or of a model's folder with a tokenizer")
	f.StringVar(&from, "data", "", "`DIR` of token shards")
	f.Int64Var(&first, "first", 0, "with --data: begin with token `N`")
	f.Int64Var(&num, "tokens", num, "with --data: number of tokens to decode")
	f.BoolVar(&skip, "skip-special", false, "leave out special tokens")
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

// writeInner is writeDecoded for ids that are not the first of a text. A decoder may
// take a space off the beginning of a text; these ids do not begin one.
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
