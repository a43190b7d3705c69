// SPDX-License-Identifier: Apache-2.0

package data

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"sync/atomic"
)

// A shard is a file of tokens. All numbers are little-endian:
//
//	offset  bytes  what
//	0       8      "COHORTTK"
//	8       4      version, 1
//	12      4      width of a token in bytes, 2 or 4
//	16      8      number of tokens
//	24      8      number of documents that end in the shard
//	32      8      size of the tokenizer's vocabulary: every token is below it
//	40      16     fingerprint of the tokenizer
//	56      4      zero
//	60      4      CRC-32C of the 60 bytes before
//	64             tokens, width bytes each
//	...            for each document, 8 bytes: the number of tokens up to its end
//	...            for each block of 64 KiB of the tokens, 4 bytes: its CRC-32C
//	...     4      CRC-32C of everything after the tokens
//
// The checksums of the blocks let a window be read, and checked, without
// reading the shard.
const (
	shardMagic   = "COHORTTK"
	shardVersion = 1
	shardHeader  = 64
	shardBlock   = 64 << 10
	shardSuffix  = ".tokens"

	// Limits of what a header may say.
	maxShardTokens = 1 << 40
	maxShardDocs   = 1 << 32
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ShardError reports a file of tokens, or a directory of them, that cannot be
// used: cut off, damaged, or made by another tokenizer.
type ShardError struct {
	Path string
	Msg  string
}

func (e *ShardError) Error() string { return fmt.Sprintf("data: tokens in %s: %s", e.Path, e.Msg) }

// shardInfo is what a header says.
type shardInfo struct {
	width       int
	tokens      int64
	documents   int64
	vocab       int64
	fingerprint string
}

func (s *shardInfo) blocks() int64 { return (s.tokens*int64(s.width) + shardBlock - 1) / shardBlock }

// size is how long the file must be.
func (s *shardInfo) size() int64 {
	return shardHeader + s.tokens*int64(s.width) + 8*s.documents + 4*s.blocks() + 4
}

func (s *shardInfo) header() []byte {
	h := make([]byte, shardHeader)
	copy(h, shardMagic)
	le := binary.LittleEndian
	le.PutUint32(h[8:], shardVersion)
	le.PutUint32(h[12:], uint32(s.width))
	le.PutUint64(h[16:], uint64(s.tokens))
	le.PutUint64(h[24:], uint64(s.documents))
	le.PutUint64(h[32:], uint64(s.vocab))
	copy(h[40:56], s.fingerprint)
	le.PutUint32(h[60:], crc32.Checksum(h[:60], castagnoli))
	return h
}

// parseShardHeader trusts nothing.
func parseShardHeader(h []byte) (shardInfo, error) {
	le := binary.LittleEndian
	if len(h) < shardHeader || string(h[:8]) != shardMagic {
		return shardInfo{}, errors.New("not a file of tokens: it does not begin with " + shardMagic)
	}
	if v := le.Uint32(h[8:]); v != shardVersion {
		return shardInfo{}, fmt.Errorf("version %d, this program reads version %d", v, shardVersion)
	}
	if le.Uint32(h[60:]) != crc32.Checksum(h[:60], castagnoli) {
		return shardInfo{}, errors.New("the header is damaged: its checksum does not fit")
	}
	s := shardInfo{
		width: int(le.Uint32(h[12:])), tokens: int64(le.Uint64(h[16:])), documents: int64(le.Uint64(h[24:])),
		vocab: int64(le.Uint64(h[32:])), fingerprint: string(h[40:56]),
	}
	switch {
	case s.width != 2 && s.width != 4:
		return shardInfo{}, fmt.Errorf("tokens of %d bytes, want 2 or 4", s.width)
	case s.tokens < 0 || s.tokens > maxShardTokens:
		return shardInfo{}, fmt.Errorf("%d tokens, want at most %d", s.tokens, int64(maxShardTokens))
	case s.documents < 0 || s.documents > maxShardDocs:
		return shardInfo{}, fmt.Errorf("%d documents, want at most %d", s.documents, int64(maxShardDocs))
	case s.vocab < 1 || s.vocab > 1<<(8*s.width):
		return shardInfo{}, fmt.Errorf("a vocabulary of %d does not fit tokens of %d bytes", s.vocab, s.width)
	}
	return s, nil
}

// shard is an open file of tokens. It is safe for concurrent use.
type shard struct {
	shardInfo
	path    string
	r       io.ReaderAt
	close   func() error
	sums    []byte          // of the blocks
	checked []atomic.Uint32 // a bit for each block whose checksum has been found right
}

func openShard(path string) (*shard, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, &ShardError{path, "missing; encode the text again"}
	} else if err != nil {
		return nil, &ShardError{path, err.Error()}
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, &ShardError{path, err.Error()}
	}
	s, err := readShard(path, f, info.Size())
	if err != nil {
		f.Close()
		return nil, err
	}
	s.close = f.Close
	return s, nil
}

// readShard reads everything but the tokens.
func readShard(path string, r io.ReaderAt, size int64) (*shard, error) {
	fail := func(format string, args ...any) (*shard, error) {
		return nil, &ShardError{path, fmt.Sprintf(format, args...)}
	}
	if size == 0 {
		return fail("empty; encode the text again")
	}
	head := make([]byte, min(size, shardHeader))
	if _, err := r.ReadAt(head, 0); err != nil && !errors.Is(err, io.EOF) {
		return fail("%v", err)
	}
	info, err := parseShardHeader(head)
	if err != nil {
		return fail("%v", err)
	}
	if want := info.size(); size < want {
		return fail("cut off: %d bytes, its header says %d; encode the text again", size, want)
	} else if size > want {
		return fail("%d bytes, its header says %d: it is not what was written", size, want)
	}
	s := &shard{shardInfo: info, path: path, r: r, checked: make([]atomic.Uint32, (info.blocks()+31)/32)}
	// The file is as long as it says, so this allocates no more than there is.
	at := shardHeader + info.tokens*int64(info.width)
	tail := make([]byte, size-at)
	if _, err := r.ReadAt(tail, at); err != nil && !errors.Is(err, io.EOF) {
		return fail("%v", err)
	}
	n := len(tail) - 4
	if binary.LittleEndian.Uint32(tail[n:]) != crc32.Checksum(tail[:n], castagnoli) {
		return fail("damaged: the checksum of its index does not fit; encode the text again")
	}
	last := int64(0)
	for i := range info.documents {
		end := int64(binary.LittleEndian.Uint64(tail[8*i:]))
		if end < last || end > info.tokens {
			return fail("document %d ends at token %d of %d, the one before at %d", i, end, info.tokens, last)
		}
		last = end
	}
	s.sums = tail[8*info.documents : n]
	return s, nil
}

// read fills dst with the tokens from first on, which must exist.
func (s *shard) read(dst []int64, first int64, scratch *[]byte) error {
	w := int64(s.width)
	from, to := first*w, (first+int64(len(dst)))*w
	// Blocks that nobody has read before are read whole, and checked.
	lo, hi := from/shardBlock, (to-1)/shardBlock
	for b := lo; b <= hi; b++ {
		if err := s.check(b, scratch); err != nil {
			return err
		}
	}
	if int64(cap(*scratch)) < to-from {
		*scratch = make([]byte, to-from)
	}
	raw := (*scratch)[:to-from]
	if _, err := s.r.ReadAt(raw, shardHeader+from); err != nil {
		return &ShardError{s.path, fmt.Sprintf("reading %d bytes at %d: %v", len(raw), from, err)}
	}
	for i := range dst {
		var id int64
		if s.width == 2 {
			id = int64(binary.LittleEndian.Uint16(raw[2*i:]))
		} else {
			id = int64(binary.LittleEndian.Uint32(raw[4*i:]))
		}
		if id >= s.vocab {
			return &ShardError{s.path, fmt.Sprintf("token %d is %d, outside the vocabulary of %d", first+int64(i), id, s.vocab)}
		}
		dst[i] = id
	}
	return nil
}

// check compares a block with its checksum, unless that has been done.
func (s *shard) check(b int64, scratch *[]byte) error {
	word, bit := &s.checked[b/32], uint32(1)<<(b%32)
	if word.Load()&bit != 0 {
		return nil
	}
	from := b * shardBlock
	n := min(shardBlock, s.tokens*int64(s.width)-from)
	if int64(cap(*scratch)) < n {
		*scratch = make([]byte, shardBlock)
	}
	raw := (*scratch)[:n]
	if _, err := s.r.ReadAt(raw, shardHeader+from); err != nil {
		return &ShardError{s.path, fmt.Sprintf("reading %d bytes at %d: %v", n, from, err)}
	}
	if binary.LittleEndian.Uint32(s.sums[4*b:]) != crc32.Checksum(raw, castagnoli) {
		return &ShardError{s.path, fmt.Sprintf("damaged: the checksum of tokens %d to %d does not fit; encode the text again", from/int64(s.width), (from+n)/int64(s.width)-1)}
	}
	word.Or(bit)
	return nil
}
