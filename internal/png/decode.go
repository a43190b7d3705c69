// SPDX-License-Identifier: Apache-2.0

package png

import (
	"compress/zlib"
	"errors"
	"fmt"
	"io"
)

// pass is a part of the rows of an interlaced image: every dx-th pixel from x0
// on of every dy-th row from y0 on.
type pass struct{ x0, y0, dx, dy int }

var (
	interlaced = []pass{{0, 0, 8, 8}, {4, 0, 8, 8}, {0, 4, 4, 8}, {2, 0, 4, 4}, {0, 2, 2, 4}, {1, 0, 2, 2}, {0, 1, 1, 2}}
	plain      = []pass{{0, 0, 1, 1}}
)

// Decode decodes a part of the file that was opened last, whose upper left
// pixel is x, y, to dst: rows of red, green and blue bytes.
func (d *Decoder) Decode(dst []byte, x, y, width, height int) error {
	if !d.opened {
		return errors.New("png: decode without an open file")
	}
	if x < 0 || y < 0 || width < 1 || height < 1 || x > d.width-width || y > d.height-height || len(dst) < 3*width*height {
		return fmt.Errorf("png: decode %d·%d pixels at %d, %d of an image of %d·%d to %d bytes", width, height, x, y, d.width, d.height, len(dst))
	}
	d.opened = false
	if err := d.unpack(); err != nil {
		return err
	}
	if !d.interlaced {
		err := d.rows(plain[0], y+height, func(row int, pixels []byte) {
			if row >= y {
				d.colour(dst[3*width*(row-y):][:3*width], pixels, x)
			}
		})
		if err != nil || y+height < d.height {
			return err
		}
		return d.checkSum()
	}
	for _, p := range interlaced {
		if d.width <= p.x0 || d.height <= p.y0 {
			continue // no pixel is of this pass
		}
		err := d.rows(p, d.height, func(row int, pixels []byte) {
			if row < y || row >= y+height {
				return
			}
			d.line = sized(d.line, 3*((d.width-p.x0+p.dx-1)/p.dx))
			d.colour(d.line, pixels, 0)
			out := dst[3*width*(row-y):][:3*width]
			for i, at := 0, p.x0-x; 3*i < len(d.line) && at < width; i, at = i+1, at+p.dx {
				if at >= 0 {
					copy(out[3*at:3*at+3], d.line[3*i:])
				}
			}
		})
		if err != nil {
			return err
		}
	}
	return d.checkSum()
}

// checkSum compares the sum of all pixels with that behind them, if it is there.
func (d *Decoder) checkSum() error {
	if _, err := io.ReadFull(d.inflate, d.row[:1]); errors.Is(err, zlib.ErrChecksum) {
		return d.cut(err)
	}
	return nil
}

// unpack joins the chunks of the image, and begins to inflate them.
func (d *Decoder) unpack() error {
	var all []byte // of one chunk as it is; of several a copy
	for num := 0; ; num++ {
		name, n, err := d.chunk()
		if err != nil || name != "IDAT" {
			break // if bytes are missing, inflating tells
		}
		b := d.file[d.pos+8:]
		b = b[:min(n, len(b))]
		switch num {
		case 0:
			all = b
		case 1:
			d.joined = append(append(d.joined[:0], all...), b...)
			all = d.joined
		default:
			d.joined = append(d.joined, b...)
			all = d.joined
		}
		d.pos += min(12+n, len(d.file)-d.pos)
	}
	d.packed.Reset(all)
	var err error
	if d.inflate == nil {
		d.inflate, err = zlib.NewReader(&d.packed)
	} else {
		err = d.inflate.(zlib.Resetter).Reset(&d.packed, nil)
	}
	return d.cut(err)
}

// cut says in words that bytes are missing.
func (d *Decoder) cut(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return d.fail("the image is cut off")
	}
	return d.fail("%v", err)
}

// rows calls emit with the rows of a pass, by their numbers in the image, up to
// row to.
func (d *Decoder) rows(p pass, to int, emit func(row int, pixels []byte)) error {
	n := d.rowBytes((d.width - p.x0 + p.dx - 1) / p.dx)
	d.row, d.last = sized(d.row, 1+n), sized(d.last, 1+n)
	clear(d.last)
	for y := p.y0; y < to; y += p.dy {
		if _, err := io.ReadFull(d.inflate, d.row); err != nil {
			return d.cut(err)
		}
		if !unfilter(d.row[0], d.row[1:], d.last[1:], max(1, d.channels()*d.depth/8)) {
			return d.fail("row %d has filter %d", y, d.row[0])
		}
		emit(y, d.row[1:])
		d.row, d.last = d.last, d.row
	}
	return nil
}

// unfilter undoes a filter of a row, whose pixels are of size bytes.
func unfilter(filter byte, row, above []byte, size int) bool {
	above = above[:len(row)]
	switch filter {
	case 0:
	case 1:
		for i := size; i < len(row); i++ {
			row[i] += row[i-size]
		}
	case 2:
		for i, v := range above {
			row[i] += v
		}
	case 3:
		for i := range min(size, len(row)) {
			row[i] += above[i] / 2
		}
		for i := size; i < len(row); i++ {
			row[i] += byte((int(row[i-size]) + int(above[i])) / 2)
		}
	case 4:
		for c := range min(size, len(row)) {
			left, corner := 0, 0
			for i := c; i < len(row); i += size {
				up := int(above[i])
				// Which of the three is nearest to left + up - corner.
				toLeft, toUp := up-corner, left-corner
				toCorner := abs(toLeft + toUp)
				toLeft, toUp = abs(toLeft), abs(toUp)
				near := corner
				if toLeft <= toUp && toLeft <= toCorner {
					near = left
				} else if toUp <= toCorner {
					near = up
				}
				left, corner = (near+int(row[i]))&255, up
				row[i] = byte(left)
			}
		}
	default:
		return false
	}
	return true
}

func abs(v int) int {
	sign := v >> 63
	return v ^ sign - sign
}

// colour makes red, green and blue of the pixels of a row from the one at x on,
// as many as out has room for.
func (d *Decoder) colour(out, row []byte, x int) {
	if d.depth < 8 {
		scale := byte(255 / (1<<d.depth - 1))
		for i := range len(out) / 3 {
			bit := (x + i) * d.depth
			v := row[bit/8] >> (8 - d.depth - bit%8) & (1<<d.depth - 1)
			if d.kind == palette {
				copy(out[3*i:3*i+3], d.colours[v][:])
			} else {
				v *= scale
				out[3*i], out[3*i+1], out[3*i+2] = v, v, v
			}
		}
		return
	}
	wide := d.depth / 8 // bytes of a number, the upper one first
	step := wide * d.channels()
	row = row[x*step:]
	switch {
	case d.kind == colour && wide == 1:
		copy(out, row)
	case d.kind == palette:
		for i, v := range row[:len(out)/3] {
			c := &d.colours[v]
			out[3*i], out[3*i+1], out[3*i+2] = c[0], c[1], c[2]
		}
	case d.kind == grey || d.kind == greyAlpha:
		for i, at := 0, 0; i+2 < len(out); i, at = i+3, at+step {
			v := row[at]
			out[i], out[i+1], out[i+2] = v, v, v
		}
	default:
		for i, at := 0, 0; i+2 < len(out); i, at = i+3, at+step {
			p := row[at : at+2*wide+1]
			out[i], out[i+1], out[i+2] = p[0], p[wide], p[2*wide]
		}
	}
}

// sized returns a slice of a length, of the same memory if it is enough.
func sized(s []byte, n int) []byte {
	if cap(s) < n {
		return make([]byte, n)
	}
	return s[:n]
}
