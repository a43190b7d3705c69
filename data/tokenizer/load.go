// SPDX-License-Identifier: Apache-2.0

package tokenizer

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// The files of a tokenizer in a folder of the Hugging Face libraries.
const (
	jsonFile   = "tokenizer.json"
	vocabFile  = "vocab.json"
	mergesFile = "merges.txt"
)

// Load reads a tokenizer from a file of the form of tokenizer.json, as the
// tokenizers package does, or from a folder that has a tokenizer.json or else
// GPT-2's vocab.json and merges.txt, as AutoTokenizer of the transformers package
// (5.24) does: the class that tokenizer_config.json names, or else the kind of
// model in config.json, decides what of the tokenizer.json counts, and
// tokenizer_config.json, special_tokens_map.json and added_tokens.json add
// tokens. A class or setting that would change ids and is not known here is
// refused with a *[FormatError].
func Load(path string) (*Tokenizer, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	if info.IsDir() {
		return loadFolder(path)
	}
	return loadFile(path, Read)
}

// loadFile reads a file and puts its path into errors.
func loadFile[T any](path string, read func(io.Reader) (T, error)) (T, error) {
	var none T
	f, err := os.Open(path)
	if err != nil {
		return none, fmt.Errorf("tokenizer: %w", err)
	}
	defer f.Close()
	v, err := read(bufio.NewReaderSize(f, 1<<16))
	var format *FormatError
	if errors.As(err, &format) {
		format.Path = path
	} else if err != nil {
		err = fmt.Errorf("%s: %w", path, err)
	}
	return v, err
}

// LoadGPT2 reads the two files of GPT-2's tokenizer alone: vocab.json, which maps
// tokens to ids, and merges.txt with a pair a line. Where <|endoftext|> is in
// the vocabulary it is a special token.
func LoadGPT2(vocab, merges string) (*Tokenizer, error) {
	d, err := readGPT2(vocab, merges)
	if err != nil {
		return nil, err
	}
	const end = "<|endoftext|>"
	if id, ok := d.Model.Vocab[end]; ok {
		d.AddedTokens = []AddedToken{{ID: id, Content: end, Special: true}}
	}
	t, err := d.tokenizer()
	var format *FormatError
	if errors.As(err, &format) {
		format.Path = vocab
		if strings.HasPrefix(format.Field, "model.merges") {
			format.Path = merges
		}
	}
	return t, err
}

// readGPT2 reads the two files of GPT-2's tokenizer, without added tokens.
func readGPT2(vocab, merges string) (*document, error) {
	ids, err := loadFile(vocab, readVocab)
	if err != nil {
		return nil, err
	}
	pairs, err := loadFile(merges, readMerges)
	if err != nil {
		return nil, err
	}
	preTokenizer, decoder := SplitGPT2.sections()
	return &document{
		PreTokenizer: preTokenizer, Decoder: decoder,
		PostProcessor: json.RawMessage(`{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": true}`),
		Model:         model{Type: "BPE", Vocab: ids, Merges: mergeNames{pairs: pairs}},
	}, nil
}

func readVocab(r io.Reader) (map[string]int64, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxFile {
		return nil, formatErr("", "longer than %d bytes: is this a vocab.json?", maxFile)
	}
	var ids map[string]int64
	if err := json.Unmarshal(b, &ids); err != nil {
		return nil, formatErr("", "not a vocab.json: %v", err)
	}
	return ids, nil
}

func readMerges(r io.Reader) ([][2]string, error) {
	var pairs [][2]string
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 4*MaxTokenLen+64)
	for n := 1; lines.Scan(); n++ {
		line := lines.Text()
		if n == 1 && strings.HasPrefix(line, "#version") || line == "" {
			continue
		}
		left, right, ok := strings.Cut(line, " ")
		if !ok || strings.Contains(right, " ") {
			return nil, formatErr(fmt.Sprintf("line %d", n), "%.80q must have two parts with a space between", line)
		}
		if len(pairs) == 2*MaxVocab {
			return nil, formatErr(fmt.Sprintf("line %d", n), "more than %d merges", 2*MaxVocab)
		}
		pairs = append(pairs, [2]string{left, right})
	}
	if err := lines.Err(); errors.Is(err, bufio.ErrTooLong) {
		return nil, formatErr("", "has a line that is too long: is this a merges.txt?")
	} else if err != nil {
		return nil, err
	}
	return pairs, nil
}
