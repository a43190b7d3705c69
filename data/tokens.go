// SPDX-License-Identifier: Apache-2.0

package data

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"github.com/cohort-ml/cohort/data/tokenizer"
)

// ShardsFile is the list of the shards of a directory. It is written last, so
// a directory without it is not complete.
const ShardsFile = "shards.json"

const (
	shardsTokenizer = "tokenizer.json"
	maxShardsFile   = 64 << 20
	maxShards       = 1 << 16
)

// shardList is what shards.json says.
type shardList struct {
	Version    int         `json:"version"`
	Source     string      `json:"source"`    // what was encoded, for people
	Tokenizer  string      `json:"tokenizer"` // its fingerprint
	EndOfText  *int64      `json:"end_of_text,omitempty"`
	TextBytes  int64       `json:"text_bytes"`
	Train      []shardFile `json:"train"`
	Validation []shardFile `json:"validation"`
}

type shardFile struct {
	Name      string `json:"name"`
	Tokens    int64  `json:"tokens"`
	Documents int64  `json:"documents"`
}

// Tokens is a long row of tokens that lies in the shards of a directory, one
// after the other. They are read when asked for. It is safe for concurrent
// use.
type Tokens struct {
	shards []*shard
	starts []int64 // of the shards, and the end
	docs   int64
	name   string
}

// Len is the number of tokens.
func (t *Tokens) Len() int64 { return t.starts[len(t.shards)] }

// NumDocuments is the number of documents that end in the row.
func (t *Tokens) NumDocuments() int64 { return t.docs }

// ReadAt fills dst with the tokens from position pos on. Less than all of dst
// is an error, io.EOF at the end of the row, and a *[ShardError] where a shard
// is damaged: what is read is always what was written.
func (t *Tokens) ReadAt(dst []int64, pos int64) (int, error) {
	var scratch []byte
	return t.readAt(dst, pos, &scratch)
}

func (t *Tokens) readAt(dst []int64, pos int64, scratch *[]byte) (int, error) {
	if pos < 0 {
		return 0, fmt.Errorf("data: reading tokens at the negative position %d", pos)
	}
	i := sort.Search(len(t.shards), func(i int) bool { return t.starts[i+1] > pos })
	n := 0
	for ; n < len(dst) && i < len(t.shards); i++ {
		at := pos + int64(n) - t.starts[i]
		m := int(min(int64(len(dst)-n), t.shards[i].tokens-at))
		if m == 0 {
			continue
		}
		if err := t.shards[i].read(dst[n:n+m], at, scratch); err != nil {
			return n, err
		}
		n += m
	}
	if n < len(dst) {
		return n, io.EOF
	}
	return n, nil
}

// Shards is an open directory of token shards, as [EncodeShards] writes them.
type Shards struct {
	Dir        string
	Source     string // what was encoded, for people
	Tokenizer  *tokenizer.Tokenizer
	TextBytes  int64 // that were encoded
	Train      *Tokens
	Validation *Tokens
}

// IsShards reports whether a path is a directory of token shards.
func IsShards(path string) bool {
	if path == "" {
		return false
	}
	_, err := os.Stat(filepath.Join(path, ShardsFile))
	return err == nil
}

// unended returns the error of a directory with shards but without their list,
// which is no text either; nil for others.
func unended(dir string) error {
	if IsShards(dir) {
		return nil
	}
	for _, part := range []string{"train", "validation"} {
		if _, err := os.Stat(filepath.Join(dir, shardName(part, 0))); err == nil {
			return &ShardError{dir, fmt.Sprintf("tokens whose encoding did not end (there is no %s): encode the text again", ShardsFile)}
		}
	}
	return nil
}

// OpenShards opens a directory of token shards. It reads the headers and
// indexes of all; the tokens are checked when they are read. A directory that
// is not complete, a shard that is cut off or damaged, and a tokenizer.json
// other than that of the shards are *[ShardError]s. Close it after use.
func OpenShards(dir string) (*Shards, error) {
	fail := func(format string, args ...any) (*Shards, error) {
		return nil, &ShardError{dir, fmt.Sprintf(format, args...)}
	}
	path := filepath.Join(dir, ShardsFile)
	text, err := readSmall(path, maxShardsFile)
	if errors.Is(err, os.ErrNotExist) {
		if err := unended(dir); err != nil {
			return nil, err
		}
		return fail("there is no %s: not a directory of tokens", ShardsFile)
	} else if err != nil {
		return fail("%v", err)
	}
	list, err := parseShardList(text)
	if err != nil {
		return nil, &ShardError{path, err.Error()}
	}
	tok, err := tokenizer.Load(filepath.Join(dir, shardsTokenizer))
	if err != nil {
		return fail("%v", err)
	}
	if tok.Fingerprint() != list.Tokenizer {
		return fail("%s is not the tokenizer of the shards: its fingerprint is %s, theirs %s", shardsTokenizer, tok.Fingerprint(), list.Tokenizer)
	}
	s := &Shards{Dir: dir, Source: list.Source, Tokenizer: tok, TextBytes: list.TextBytes}
	if s.Train, err = openTokens(dir, list.Train, list, tok); err != nil {
		return nil, err
	}
	if s.Validation, err = openTokens(dir, list.Validation, list, tok); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func readSmall(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("%s is longer than %d bytes", path, limit)
	}
	return b, err
}

// parseShardList trusts nothing.
func parseShardList(text []byte) (*shardList, error) {
	var l shardList
	if err := json.Unmarshal(text, &l); err != nil {
		return nil, fmt.Errorf("not a list of shards: %w", err)
	}
	switch {
	case l.Version != shardVersion:
		return nil, fmt.Errorf("version %d, this program reads version %d", l.Version, shardVersion)
	case len(l.Train)+len(l.Validation) > maxShards:
		return nil, fmt.Errorf("%d shards, at most %d are supported", len(l.Train)+len(l.Validation), maxShards)
	}
	for _, files := range [][]shardFile{l.Train, l.Validation} {
		for _, f := range files {
			switch {
			case f.Name != filepath.Base(f.Name) || !strings.HasSuffix(f.Name, shardSuffix):
				return nil, fmt.Errorf("%q is no name of a shard", f.Name)
			case f.Tokens < 0 || f.Tokens > maxShardTokens || f.Documents < 0 || f.Documents > maxShardDocs:
				return nil, fmt.Errorf("%s has %d tokens and %d documents", f.Name, f.Tokens, f.Documents)
			}
		}
	}
	return &l, nil
}

func openTokens(dir string, files []shardFile, list *shardList, tok *tokenizer.Tokenizer) (*Tokens, error) {
	t := &Tokens{starts: []int64{0}, name: dir}
	for _, f := range files {
		path := filepath.Join(dir, f.Name)
		s, err := openShard(path)
		if err == nil {
			t.shards = append(t.shards, s)
			switch {
			case s.tokens != f.Tokens || s.documents != f.Documents:
				err = &ShardError{path, fmt.Sprintf("%d tokens of %d documents, %s says %d of %d", s.tokens, s.documents, ShardsFile, f.Tokens, f.Documents)}
			case s.fingerprint != list.Tokenizer:
				err = &ShardError{path, fmt.Sprintf("made by another tokenizer, %s, than %s says, %s", s.fingerprint, ShardsFile, list.Tokenizer)}
			case s.vocab != int64(tok.Size()):
				err = &ShardError{path, fmt.Sprintf("made with a vocabulary of %d, %s has %d tokens", s.vocab, shardsTokenizer, tok.Size())}
			}
		}
		if err != nil {
			t.closeAll()
			return nil, err
		}
		t.starts = append(t.starts, t.starts[len(t.starts)-1]+s.tokens)
		t.docs += s.documents
	}
	return t, nil
}

func (t *Tokens) closeAll() (err error) {
	for _, s := range t.shards {
		if s.close != nil {
			err = errors.Join(err, s.close())
		}
	}
	return err
}

// Close closes the files.
func (s *Shards) Close() error {
	var err error
	for _, t := range []*Tokens{s.Train, s.Validation} {
		if t != nil {
			err = errors.Join(err, t.closeAll())
		}
	}
	return err
}
