// SPDX-License-Identifier: Apache-2.0

package jpeg

import (
	"github.com/cohort-ml/cohort/internal/kernel"
)

// colours says what the components of a file are.
type colours int

const (
	grey colours = iota
	yCbCr
	rgb
	cmyk
	ycck
)

// colourSpace finds out, by libjpeg's rules: markers first, JFIF's before
// Adobe's, then names. Four components are inks, which are stored as what they
// leave of the light, as Adobe's programs do and Pillow takes for granted.
func (d *Decoder) colourSpace() colours {
	switch len(d.comps) {
	case 1:
		return grey
	case maxComps:
		if d.adobe > 0 {
			return ycck
		}
		return cmyk
	}
	c := d.comps
	switch {
	case d.jfif || d.adobe > 0:
		return yCbCr
	case d.adobe == 0 || c[0].id == 'R' && c[1].id == 'G' && c[2].id == 'B':
		return rgb
	}
	return yCbCr
}

// convert makes a row of red, green and blue of the rows of the components.
func (s colours) convert(out []byte, rows *[maxComps][]byte) {
	first := rows[0]
	switch s {
	case grey:
		for i, v := range first {
			out[3*i], out[3*i+1], out[3*i+2] = v, v, v
		}
		return
	case yCbCr, ycck:
		kernel.YCbCrToRGB(out, first, rows[1], rows[2])
	case rgb:
		for i, v := range first {
			out[3*i], out[3*i+1], out[3*i+2] = v, rows[1][i], rows[2][i]
		}
	case cmyk:
		for i, v := range first {
			out[3*i], out[3*i+1], out[3*i+2] = 255-v, 255-rows[1][i], 255-rows[2][i]
		}
	}
	if s != cmyk && s != ycck {
		return
	}
	for i, k := range rows[3] { // k is how much light black leaves, out how much the ink takes of that
		for j := 3 * i; j < 3*i+3; j++ {
			v := int(out[j])*int(k) + 128
			out[j] = byte(max(int(k)-(v>>8+v)>>8, 0))
		}
	}
}
