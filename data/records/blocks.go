// SPDX-License-Identifier: Apache-2.0

package records

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"sync"

	"github.com/klauspost/compress/zstd"
)

const (
	// blockSize is how much text a block has: a record is read by decoding one.
	blockSize    = 32 << 10
	blocksEnding = ".blocks"
	blocksMagic  = "cohortbk"
	blocksFooter = 64
	maxBlocks    = 1 << 28
	// A file that grows to more than maxRatio times its size is no text, from bombSize on.
	maxRatio  = 300
	bombSize  = 256 << 20
	maxWindow = 128 << 20 // of zstd: what zstd --long uses
	keptRead  = 16        // decoded blocks that are kept
)

// blocks is a copy of a text in compressed blocks, which is read at any place.
type blocks struct {
	file   *os.File
	size   int64   // of the text
	starts []int64 // of the blocks, in the text, and the end
	places []int64 // of the blocks, in the file, and the end
	coder  *zstd.Decoder

	mu   sync.Mutex
	kept map[int][]byte
	turn []int
}

// openBlocks returns the copy of a file: that of the cache, or else a new one of what text reads.
func openBlocks(ctx context.Context, path, kind string, c *cache, text func(f *os.File) (io.ReadCloser, error)) (*blocks, error) {
	f, k, err := openKeyed(path, kind)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	at := filepath.Join(c.dir, k.at(blocksEnding))
	if b := readBlocks(at, k); b != nil {
		return b, nil
	}
	c.tell("copying %s to a file of blocks, once", path)
	r, err := text(f)
	if err == nil {
		err = writeBlocks(ctx, at, k, r)
		r.Close()
	}
	if bad := (*Error)(nil); errors.As(err, &bad) {
		bad.Path = path
		return nil, bad
	} else if err != nil {
		return nil, err
	}
	b := readBlocks(at, k)
	if b == nil {
		return nil, &Error{Path: path, Detail: fmt.Sprintf("its copy %s cannot be read although it was just written: free the disk, or set COHORT_CACHE to another directory", at)}
	}
	return b, nil
}

// writeBlocks copies a text.
func writeBlocks(ctx context.Context, at string, k key, text io.Reader) error {
	out, err := createTemporary(at)
	if err != nil {
		return err
	}
	defer out.discard()
	coder, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return err
	}
	defer coder.Close()
	var table, packed []byte
	raw, place := int64(0), int64(0)
	buf := make([]byte, blockSize)
	for {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		n, err := io.ReadFull(text, buf)
		if n > 0 {
			table = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(table, uint64(raw)), uint64(place))
			packed = coder.EncodeAll(buf[:n], packed[:0])
			if _, err := out.Write(packed); err != nil {
				return out.fail(err)
			}
			raw, place = raw+int64(n), place+int64(len(packed))
		}
		if raw > bombSize && raw/maxRatio > k.size {
			return &Error{Detail: fmt.Sprintf("it grows to more than %d times its size: that is no text; unpack it if it is", maxRatio)}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) && n < blockSize && isEnd(err) {
			break
		} else if err != nil {
			var own *Error
			if errors.As(err, &own) {
				return err
			}
			return &Error{Detail: fmt.Sprintf("is damaged after %d bytes of text: %v", raw, err)}
		}
	}
	table = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(table, uint64(raw)), uint64(place))
	footer := append(make([]byte, 0, blocksFooter), blocksMagic...)
	for _, n := range []int64{1, int64(len(table)/16 - 1), k.size, k.mtime, place} {
		footer = binary.LittleEndian.AppendUint64(footer, uint64(n))
	}
	footer = append(footer, make([]byte, blocksFooter-4-len(footer))...)
	footer = binary.LittleEndian.AppendUint32(footer, crc32.Update(crc32.Checksum(table, castagnoli), castagnoli, footer))
	for _, b := range [][]byte{table, footer} {
		if _, err := out.Write(b); err != nil {
			return out.fail(err)
		}
	}
	return out.keep()
}

// isEnd reports whether io.ReadFull has met the end of a text, and not a text that is cut off. Readers
// of text say cutOff for that.
func isEnd(err error) bool { return !errors.Is(err, errCutOff) }

var errCutOff = errors.New("it is cut off")

// whole is a reader that tells the end of a compressed file from one that is cut off.
type whole struct {
	io.Reader
	close func() error
}

func (w whole) Read(b []byte) (int, error) {
	n, err := w.Reader.Read(b)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = errCutOff
	}
	return n, err
}

func (w whole) Close() error { return w.close() }

func gunzip(f *os.File) (io.ReadCloser, error) {
	r, err := gzip.NewReader(f)
	if err != nil {
		return nil, &Error{Detail: "is no gzip file: " + err.Error()}
	}
	return whole{r, r.Close}, nil
}

func unzstd(f *os.File) (io.ReadCloser, error) {
	r, err := zstd.NewReader(f, zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderConcurrency(1))
	if err != nil {
		return nil, &Error{Detail: "is no zstd file: " + err.Error()}
	}
	return whole{r, func() error { r.Close(); return nil }}, nil
}

// readBlocks opens a copy in the cache. It is nil where there is none of this state of the file, or
// where it is damaged.
func readBlocks(at string, k key) *blocks {
	f, err := os.Open(at)
	if err != nil {
		return nil
	}
	b, err := parseBlocks(f, k)
	if err != nil {
		f.Close()
		return nil
	}
	return b
}

func parseBlocks(f *os.File, k key) (*blocks, error) {
	damaged := errors.New("damaged")
	info, err := f.Stat()
	if err != nil || info.Size() < blocksFooter {
		return nil, damaged
	}
	footer := make([]byte, blocksFooter)
	if _, err := f.ReadAt(footer, info.Size()-blocksFooter); err != nil {
		return nil, err
	}
	n := func(i int) int64 { return int64(binary.LittleEndian.Uint64(footer[8+8*i:])) }
	num, place := n(1), n(4)
	if !bytes.HasPrefix(footer, []byte(blocksMagic)) || n(0) != 1 || num < 0 || num > maxBlocks || n(2) != k.size || n(3) != k.mtime ||
		place < 0 || place+16*(num+1)+blocksFooter != info.Size() {
		return nil, damaged
	}
	table := make([]byte, 16*(num+1))
	if _, err := f.ReadAt(table, place); err != nil {
		return nil, err
	}
	if crc32.Update(crc32.Checksum(table, castagnoli), castagnoli, footer[:blocksFooter-4]) != binary.LittleEndian.Uint32(footer[blocksFooter-4:]) {
		return nil, damaged
	}
	b := &blocks{file: f, kept: map[int][]byte{}}
	for i := range num + 1 {
		b.starts = append(b.starts, int64(binary.LittleEndian.Uint64(table[16*i:])))
		b.places = append(b.places, int64(binary.LittleEndian.Uint64(table[16*i+8:])))
	}
	b.size = b.starts[num]
	b.coder, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderMaxMemory(4*blockSize))
	return b, err
}

// ReadAt implements io.ReaderAt.
func (b *blocks) ReadAt(p []byte, off int64) (int, error) {
	n := 0
	for n < len(p) {
		at := off + int64(n)
		if at >= b.size {
			return n, io.EOF
		}
		i := sort.Search(len(b.starts), func(i int) bool { return b.starts[i] > at }) - 1
		text, err := b.block(i)
		if err != nil {
			return n, err
		}
		n += copy(p[n:], text[at-b.starts[i]:])
	}
	return n, nil
}

// block decodes a block, or returns one that was decoded lately.
func (b *blocks) block(i int) ([]byte, error) {
	b.mu.Lock()
	text, ok := b.kept[i]
	b.mu.Unlock()
	if ok {
		return text, nil
	}
	packed := make([]byte, b.places[i+1]-b.places[i])
	if _, err := b.file.ReadAt(packed, b.places[i]); err != nil {
		return nil, err
	}
	text, err := b.coder.DecodeAll(packed, make([]byte, 0, blockSize))
	if err == nil && int64(len(text)) != b.starts[i+1]-b.starts[i] {
		err = errors.New("a block has another length")
	}
	if err != nil {
		return nil, fmt.Errorf("the copy %s is damaged (%w): remove it", b.file.Name(), err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, ok := b.kept[i]; !ok {
		if b.turn = append(b.turn, i); len(b.turn) > keptRead {
			delete(b.kept, b.turn[0])
			b.turn = b.turn[1:]
		}
		b.kept[i] = text
	}
	return text, nil
}

// Close closes the file.
func (b *blocks) Close() error {
	b.coder.Close()
	return b.file.Close()
}

// openPacked opens lines that are compressed.
func openPacked(ctx context.Context, path string, _ Options, c *cache) (source, error) {
	return openCopied(ctx, path, "packed", c, unpacker(path))
}

// unpacker is what reads a compressed file, by its name.
func unpacker(path string) func(f *os.File) (io.ReadCloser, error) {
	if strings.HasSuffix(strings.ToLower(path), ".zst") {
		return unzstd
	}
	return gunzip
}

// openCopied opens lines of which the cache has a copy.
func openCopied(ctx context.Context, path, kind string, c *cache, text func(f *os.File) (io.ReadCloser, error)) (source, error) {
	x, err := openCopy(ctx, path, kind, kind+" "+kindLines, frameLines, c, text)
	if err != nil {
		return nil, err
	}
	return &plain{x, true}, nil
}
