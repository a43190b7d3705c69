// SPDX-License-Identifier: Apache-2.0

package data

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
)

// shardWriter writes tokens to files of a directory, one after the other. It
// belongs to one goroutine.
type shardWriter struct {
	dir, name string // files are called name-00000.tokens and so on
	info      shardInfo
	max       int64 // tokens of a shard

	files []shardFile
	f     *os.File
	w     *bufio.Writer
	now   shardInfo // of the open file
	ends  []byte    // of documents
	sums  []byte
	crc   uint32
	block int // bytes of the block that is not complete
	raw   []byte
}

// append writes tokens, which must be in the vocabulary.
func (w *shardWriter) append(ids []int64) error {
	for len(ids) > 0 {
		if w.f != nil && w.now.tokens == w.max {
			if err := w.finish(); err != nil {
				return err
			}
		}
		if w.f == nil {
			if err := w.open(); err != nil {
				return err
			}
		}
		n := int(min(int64(len(ids)), w.max-w.now.tokens))
		w.raw = w.raw[:0]
		for _, id := range ids[:n] {
			if id < 0 || id >= w.info.vocab {
				return &ShardError{w.dir, fmt.Sprintf("token %d is outside the vocabulary of %d", id, w.info.vocab)}
			}
			if w.info.width == 2 {
				w.raw = binary.LittleEndian.AppendUint16(w.raw, uint16(id))
			} else {
				w.raw = binary.LittleEndian.AppendUint32(w.raw, uint32(id))
			}
		}
		if err := w.write(w.raw); err != nil {
			return err
		}
		w.now.tokens += int64(n)
		ids = ids[n:]
	}
	return nil
}

// write adds bytes of tokens and counts the checksums of their blocks.
func (w *shardWriter) write(raw []byte) error {
	if _, err := w.w.Write(raw); err != nil {
		return fmt.Errorf("data: writing tokens to %s: %w", w.f.Name(), err)
	}
	for len(raw) > 0 {
		n := min(shardBlock-w.block, len(raw))
		w.crc = crc32.Update(w.crc, castagnoli, raw[:n])
		if w.block += n; w.block == shardBlock {
			w.endBlock()
		}
		raw = raw[n:]
	}
	return nil
}

func (w *shardWriter) endBlock() {
	w.sums = binary.LittleEndian.AppendUint32(w.sums, w.crc)
	w.crc, w.block = 0, 0
}

// endDocument notes that a document ends with the last token. Documents
// without a token, before all others, are not noted.
func (w *shardWriter) endDocument() {
	if w.f != nil {
		w.ends = binary.LittleEndian.AppendUint64(w.ends, uint64(w.now.tokens))
		w.now.documents++
	}
}

// shardName is what the i-th file of a part is called.
func shardName(part string, i int) string { return fmt.Sprintf("%s-%05d%s", part, i, shardSuffix) }

func (w *shardWriter) open() error {
	path := filepath.Join(w.dir, shardName(w.name, len(w.files)))
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return fmt.Errorf("data: writing tokens: %w", err)
	}
	w.f, w.w, w.now = f, bufio.NewWriterSize(f, 1<<20), w.info
	w.ends, w.sums = w.ends[:0], w.sums[:0]
	_, err = w.w.Write(make([]byte, shardHeader)) // zeros until all is there
	return err
}

// finish completes the open file and makes it durable.
func (w *shardWriter) finish() error {
	if w.f == nil {
		return nil
	}
	if w.block > 0 {
		w.endBlock()
	}
	tail := append(append([]byte(nil), w.ends...), w.sums...)
	tail = binary.LittleEndian.AppendUint32(tail, crc32.Checksum(tail, castagnoli))
	_, err := w.w.Write(tail)
	err = errors.Join(err, w.w.Flush())
	if err == nil {
		_, err = w.f.WriteAt(w.now.header(), 0)
	}
	if err == nil {
		err = w.f.Sync()
	}
	name := w.f.Name()
	err = errors.Join(err, w.f.Close())
	w.f = nil
	if err != nil {
		return fmt.Errorf("data: writing tokens to %s: %w", name, err)
	}
	w.files = append(w.files, shardFile{Name: filepath.Base(name), Tokens: w.now.tokens, Documents: w.now.documents})
	return nil
}

// abandon closes the open file, which stays without a header.
func (w *shardWriter) abandon() {
	if w.f != nil {
		w.f.Close()
		w.f = nil
	}
}
