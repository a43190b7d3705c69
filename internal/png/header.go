// SPDX-License-Identifier: Apache-2.0

package png

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
)

// Magic is how a file begins.
const Magic = "\x89PNG\r\n\x1a\n"

// Error says what is wrong with a file, and where.
type Error struct {
	Offset int // in the file
	Msg    string
}

func (e *Error) Error() string { return fmt.Sprintf("png: at byte %d: %s", e.Offset, e.Msg) }

// The kinds of pixels.
const (
	grey      = 0
	colour    = 2
	palette   = 3
	greyAlpha = 4
	rgbAlpha  = 6
)

// Decoder decodes files, one after the other. The zero value is ready.
type Decoder struct {
	file          []byte
	pos           int
	width, height int
	depth, kind   int
	interlaced    bool
	colours       [256][3]byte // of the palette; black where it has none

	packed    bytes.Reader // the chunks of the image, one after the other
	joined    []byte       // memory for them
	inflate   io.ReadCloser
	row, last []byte // a row as it is in the file, and the one above it
	line      []byte // a row of a pass as colours
	opened    bool
}

const maxSide = 1<<31 - 1 // of an image, by the standard

// Open reads the header of a file and returns the size of its image. The file
// must stay as it is until it is decoded.
func (d *Decoder) Open(file []byte) (width, height int, err error) {
	d.file, d.pos, d.opened, d.width = file, 0, false, 0
	d.colours = [256][3]byte{}
	if !bytes.HasPrefix(file, []byte(Magic)) {
		return 0, 0, d.fail("not a PNG file")
	}
	d.pos = len(Magic)
	for {
		name, n, err := d.chunk()
		if err != nil {
			return 0, 0, err
		}
		if name == "IDAT" || name == "IEND" {
			if d.width == 0 {
				return 0, 0, d.fail("no header before the image")
			}
			if name == "IEND" {
				return 0, 0, d.fail("no image in the file")
			}
			// Before memory is taken: deflate makes at most 1,032 bytes of one.
			if d.rowBytes(d.width)/1032 > len(file)/d.height {
				return 0, 0, d.fail("the file is cut off: %d bytes hold no image of %d·%d pixels", len(file), d.width, d.height)
			}
			d.opened = true
			return d.width, d.height, nil
		}
		if n > len(file)-d.pos-12 {
			return 0, 0, d.fail("the file is cut off: chunk %s is of %d bytes, %d are left", name, n, max(len(file)-d.pos-12, 0))
		}
		b := file[d.pos+8:][:n]
		if crc32.ChecksumIEEE(file[d.pos+4:][:4+n]) != binary.BigEndian.Uint32(file[d.pos+8+n:]) {
			return 0, 0, d.fail("the checksum of chunk %s is wrong", name)
		}
		switch name {
		case "IHDR":
			if err := d.readHeader(b); err != nil {
				return 0, 0, err
			}
		case "PLTE":
			if len(b) > 3*256 {
				return 0, 0, d.fail("a palette of %d bytes", len(b))
			}
			d.colours = [256][3]byte{}
			for i := range len(b) / 3 {
				d.colours[i] = [3]byte(b[3*i:])
			}
		}
		d.pos += 12 + n
	}
}

func (d *Decoder) fail(format string, args ...any) error {
	return &Error{d.pos, fmt.Sprintf(format, args...)}
}

// chunk returns the name and the length of the chunk at d.pos.
func (d *Decoder) chunk() (name string, n int, err error) {
	if len(d.file)-d.pos < 8 {
		return "", 0, d.fail("the file is cut off before the end of its image")
	}
	name = string(d.file[d.pos+4 : d.pos+8])
	for _, c := range name {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') {
			return "", 0, d.fail("a chunk is called %q", name)
		}
	}
	return name, int(binary.BigEndian.Uint32(d.file[d.pos:])), nil
}

func (d *Decoder) readHeader(b []byte) error {
	if len(b) < 13 || d.width != 0 {
		return d.fail("a header of %d bytes, or a second one", len(b))
	}
	width, height := binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:])
	if width < 1 || height < 1 || width > maxSide || height > maxSide {
		return d.fail("an image of %d·%d pixels", width, height)
	}
	d.depth, d.kind, d.interlaced = int(b[8]), int(b[9]), b[12] != 0
	known := false
	switch d.depth {
	case 1, 2, 4:
		known = d.kind == grey || d.kind == palette
	case 8:
		known = d.channels() > 0
	case 16:
		known = d.channels() > 0 && d.kind != palette
	}
	if !known {
		return d.fail("pixels of kind %d with %d bits", d.kind, d.depth)
	}
	if b[11] != 0 {
		return d.fail("filters of kind %d", b[11])
	}
	d.width, d.height = int(width), int(height)
	return nil
}

// channels is how many numbers a pixel has, 0 for a kind that there is not.
func (d *Decoder) channels() int {
	switch d.kind {
	case grey, palette:
		return 1
	case greyAlpha:
		return 2
	case colour:
		return 3
	case rgbAlpha:
		return 4
	}
	return 0
}

// rowBytes is the size of a row of pixels, without its filter.
func (d *Decoder) rowBytes(width int) int { return (width*d.channels()*d.depth + 7) / 8 }

// Memory is how many bytes decoding the file that was opened takes, besides the
// file and the result.
func (d *Decoder) Memory() int64 {
	return 2*int64(d.rowBytes(d.width)) + 3*int64(d.width) + int64(len(d.file))
}

// Held is how many bytes the decoder keeps for the next file.
func (d *Decoder) Held() int { return cap(d.joined) + cap(d.row) + cap(d.last) + cap(d.line) }
