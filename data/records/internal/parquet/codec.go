// SPDX-License-Identifier: Apache-2.0

package parquet

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
)

// unpack decompresses a page, which must have so many bytes then.
func unpack(codec int64, packed []byte, size int) (b []byte, err error) {
	switch codec {
	case 0:
		return packed, nil
	case 1:
		if n, err := snappy.DecodedLen(packed); err != nil {
			return nil, err
		} else if n != size || n > 64*len(packed) { // a copy has at most 64 bytes, and three in the page
			return nil, wrongSize(n, size)
		}
		b, err = snappy.Decode(nil, packed)
	case 2:
		var r *gzip.Reader
		if r, err = gzip.NewReader(bytes.NewReader(packed)); err == nil {
			b, err = atMost(r, size)
		}
	case 4:
		b, err = atMost(brotli.NewReader(bytes.NewReader(packed)), size)
	case 6:
		var r *zstd.Decoder
		if r, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(max(uint64(size)+1, 64<<20))); err == nil {
			b, err = r.DecodeAll(packed, nil)
			r.Close()
		}
	case 7:
		b, err = unpackLZ4(packed, size)
	default:
		names := map[int64]string{3: "LZO", 5: "LZ4 of Hadoop"}
		name, ok := names[codec]
		if !ok {
			name = fmt.Sprintf("number %d", codec)
		}
		return nil, fmt.Errorf("it is compressed by the codec %s, which is not read: write it with snappy or zstd", name)
	}
	if err == nil && len(b) != size {
		err = wrongSize(len(b), size)
	}
	return b, err
}

func wrongSize(n, want int) error {
	return fmt.Errorf("a page has %d bytes, and its header says %d", n, want)
}

// atMost reads all, and a byte beyond so many: what is longer than a page is not read to its end.
func atMost(r io.Reader, size int) ([]byte, error) {
	return io.ReadAll(io.LimitReader(r, int64(size)+1))
}

var errLZ4 = errors.New("damaged LZ4")

// unpackLZ4 decodes a block: literals, then a copy of what was before, again and again.
// https://github.com/lz4/lz4/blob/dev/doc/lz4_Block_format.md
func unpackLZ4(packed []byte, size int) ([]byte, error) {
	var out []byte
	length := func(n int) (int, bool) {
		for more := n == 15; more; {
			if len(packed) == 0 || n > size {
				return 0, false
			}
			n += int(packed[0])
			more = packed[0] == 255
			packed = packed[1:]
		}
		return n, true
	}
	for len(packed) > 0 {
		token := int(packed[0])
		packed = packed[1:]
		n, ok := length(token >> 4)
		if !ok || n > len(packed) || len(out)+n > size {
			return nil, errLZ4
		}
		out, packed = append(out, packed[:n]...), packed[n:]
		if len(packed) == 0 {
			break // the last literals have no copy
		}
		if len(packed) < 2 {
			return nil, errLZ4
		}
		back := int(packed[0]) | int(packed[1])<<8
		packed = packed[2:]
		n, ok = length(token & 15)
		if n += 4; !ok || back == 0 || back > len(out) || len(out)+n > size {
			return nil, errLZ4
		}
		for at := len(out) - back; n > 0; {
			part := min(n, len(out)-at) // a copy may reach into itself
			out = append(out, out[at:at+part]...)
			n -= part
		}
	}
	return out, nil
}
