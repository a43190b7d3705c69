// SPDX-License-Identifier: Apache-2.0

package vision

import (
	"bytes"
	"fmt"
	"image"
	"image/color"
	"image/jpeg"
	"io"
)

// Decode decodes a JPEG or PNG file to an image of three channels. Which it is,
// is told by its beginning. The pixels of a JPEG are libjpeg's, and so Pillow's,
// to the last bit, but for rare kinds, which image/jpeg decodes (CMYK, RGB, odd
// samplings of chroma). As with Pillow's convert("RGB"), grey becomes three
// equal channels, and what is transparent has the colour that is written under
// it.
func Decode(b []byte) (Image, error) {
	f := files.Get().(*file)
	defer f.free()
	f.path, f.decoded = "an image", nil
	f.bytes = append(f.bytes[:0], b...)
	if err := f.header(); err != nil {
		return Image{}, err
	}
	img, err := f.decode(rectangle{0, 0, f.width, f.height}, nil)
	return img, err
}

// decodeStandard decodes with the standard library.
func decodeStandard(file []byte) (Image, error) {
	switch {
	case bytes.HasPrefix(file, []byte("\xff\xd8")):
		return decodeWith(file, jpeg.DecodeConfig, jpeg.Decode)
	case len(file) == 0:
		return Image{}, fmt.Errorf("vision: the file is empty")
	}
	return Image{}, fmt.Errorf("vision: neither JPEG nor PNG: it begins with % x", file[:min(len(file), 8)])
}

// decodeWith decodes with a codec of the standard library, once its header has
// shown that the image is not too large.
func decodeWith(file []byte, config func(io.Reader) (image.Config, error), decode func(io.Reader) (image.Image, error)) (Image, error) {
	c, err := config(bytes.NewReader(file))
	if err != nil {
		return Image{}, err
	}
	if err := checkSize(c.Width, c.Height); err != nil {
		return Image{}, err
	}
	m, err := decode(bytes.NewReader(file))
	if err != nil {
		return Image{}, err
	}
	return fromImage(m), nil
}

// fromImage converts what the standard library decodes to.
func fromImage(m image.Image) Image {
	b := m.Bounds()
	img := newImage(b.Dx(), b.Dy(), 3)
	for y := range img.Height {
		row := img.row(y)
		switch m := m.(type) {
		case *image.YCbCr:
			for x := range img.Width {
				yi, ci := m.YOffset(b.Min.X+x, b.Min.Y+y), m.COffset(b.Min.X+x, b.Min.Y+y)
				row[3*x], row[3*x+1], row[3*x+2] = color.YCbCrToRGB(m.Y[yi], m.Cb[ci], m.Cr[ci])
			}
		case *image.Gray:
			for x, v := range m.Pix[m.PixOffset(b.Min.X, b.Min.Y+y):][:img.Width] {
				row[3*x], row[3*x+1], row[3*x+2] = v, v, v
			}
		case *image.RGBA: // only where all is opaque, so nothing is multiplied in
			copyRGB(row, m.Pix[m.PixOffset(b.Min.X, b.Min.Y+y):])
		case *image.NRGBA:
			copyRGB(row, m.Pix[m.PixOffset(b.Min.X, b.Min.Y+y):])
		default:
			for x := range img.Width {
				c := color.NRGBA64Model.Convert(m.At(b.Min.X+x, b.Min.Y+y)).(color.NRGBA64)
				row[3*x], row[3*x+1], row[3*x+2] = byte(c.R>>8), byte(c.G>>8), byte(c.B>>8)
			}
		}
	}
	return img
}

// copyRGB copies pixels of 4 bytes to pixels of 3.
func copyRGB(row, pix []byte) {
	for x := range len(row) / 3 {
		row[3*x], row[3*x+1], row[3*x+2] = pix[4*x], pix[4*x+1], pix[4*x+2]
	}
}
