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
	luma := &d.comps[0]
	if len(d.comps) == 1 {
		for i := range height {
			out := dst[3*width*i:][:3*width]
			for j, v := range luma.row(y + i)[margin+x:][:width] {
				out[3*j], out[3*j+1], out[3*j+2] = v, v, v
			}
		}
		return nil
	}
	for _, c := range d.comps[1:] {
		c.extend(need)
	}
	for i := range height {
		var chroma [2][]byte
		for j := range chroma {
			chroma[j] = d.chroma(j, x, y+i, width)
		}
		kernel.YCbCrToRGB(dst[3*width*i:][:3*width], luma.row(y + i)[margin+x:][:width], chroma[0], chroma[1])
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

// chroma returns the samples of a chroma component for width pixels of a row.
func (d *Decoder) chroma(i, x, y, width int) []byte {
	c := &d.comps[1+i]
	doubleX, doubleY := c.h < d.hMax, c.v < d.vMax
	if !doubleX && !doubleY {
		return c.row(y)[margin+x:][:width]
	}
	from, n := x, width // of the samples
	if doubleX {
		from, n = x/2, (x+width-1)/2-x/2+1
	}
	if cap(d.up[i]) < 2*n+2 {
		d.up[i] = make([]byte, 2*n+2)
	}
	up := d.up[i][:2*n]
	at, other := y, y
	if doubleY {
		// A pixel of an even row lies near the sample above it too, of an odd row below.
		at, other = y/2, max(min(y/2+2*(y&1)-1, c.height-1), 0)
	}
	near, far := c.row(at), c.row(other)
	near, far = near[margin+from-1:][:n+2], far[margin+from-1:][:n+2]
	switch {
	case !doubleX:
		bias := 1 + y&1
		for j := range n {
			up[j] = byte((3*int(near[1+j]) + int(far[1+j]) + bias) >> 2)
		}
		return up[:width]
	case c.width <= 2: // too narrow for a filter, libjpeg says
		for j := range n {
			up[2*j], up[2*j+1] = near[1+j], near[1+j]
		}
	case doubleY:
		kernel.UpsampleRows(up, near, far)
	default:
		kernel.UpsampleRow(up, near)
	}
	return up[x-2*from:][:width]
}
