// SPDX-License-Identifier: Apache-2.0

package jpeg

import (
	"fmt"

	"github.com/cohort-ml/cohort/internal/kernel"
)

// reach is how many pixels beyond a part its chroma depends on.
const reach = 4

// Decode decodes a part of the file that was opened last, whose upper left
// pixel is x, y, to dst: rows of red, green and blue bytes.
func (d *Decoder) Decode(dst []byte, x, y, width, height int) error {
	if d.first == nil {
		return fmt.Errorf("jpeg: decode without an open file")
	}
	if x < 0 || y < 0 || width < 1 || height < 1 || x > d.width-width || y > d.height-height || len(dst) < 3*width*height {
		return fmt.Errorf("jpeg: decode %d·%d pixels at %d, %d of an image of %d·%d to %d bytes", width, height, x, y, d.width, d.height, len(dst))
	}
	mcuX, mcuY := 8*d.hMax, 8*d.vMax
	need := area{
		max(x-reach, 0) / mcuX, max(y-reach, 0) / mcuY,
		min((x+width+reach+mcuX-1)/mcuX, d.mcusX), min((y+height+reach+mcuY-1)/mcuY, d.mcusY),
	}
	err := d.decodeScans(need)
	d.first = nil
	if err != nil {
		return err
	}
	for i := range d.comps {
		if c := &d.comps[i]; c.h < d.hMax {
			c.extend(need)
		}
	}
	for i := range height {
		for j := range d.comps {
			d.lines[j] = d.samples(j, x, y+i, width)
		}
		d.colours.convert(dst[3*width*i:][:3*width], &d.lines)
	}
	return nil
}

// extend repeats the outermost samples of the rows of an area, so that every
// sample has neighbours.
func (c *component) extend(need area) {
	for y := need.y0 * c.v * 8; y < min(need.y1*c.v*8, c.height); y++ {
		row := c.row(y)
		row[margin-1], row[margin+c.width] = row[margin], row[margin+c.width-1]
	}
}

// samples returns those of a component for width pixels of a row. What has half
// as many is filtered; other factors, which are rare, repeat samples, as in
// libjpeg.
func (d *Decoder) samples(i, x, y, width int) []byte {
	c := &d.comps[i]
	byX, byY := d.hMax/c.h, d.vMax/c.v
	if byX == 1 && byY == 1 {
		return c.row(y)[margin+x:][:width]
	}
	from := x / byX
	n := (x+width-1)/byX - from + 1 // of the samples
	if cap(d.up[i]) < n*byX+2 {
		d.up[i] = make([]byte, n*byX+2)
	}
	up := d.up[i][:n*byX]
	near := c.row(y / byY)[margin+from-1:][:n+2]
	far := near
	if byY == 2 {
		// A pixel of an even row lies near the sample above it too, of an odd row below.
		far = c.row(max(min(y/2+2*(y&1)-1, c.height-1), 0))[margin+from-1:][:n+2]
	}
	switch {
	case byX == 1 && byY == 2:
		bias := 1 + y&1
		for j := range n {
			up[j] = byte((3*int(near[1+j]) + int(far[1+j]) + bias) >> 2)
		}
	case byX == 2 && byY <= 2 && c.width > 2: // else too narrow for a filter, libjpeg says
		if byY == 2 {
			kernel.UpsampleRows(up, near, far)
		} else {
			kernel.UpsampleRow(up, near)
		}
	default:
		for j := range up {
			up[j] = near[1+j/byX]
		}
	}
	return up[x-byX*from:][:width]
}
