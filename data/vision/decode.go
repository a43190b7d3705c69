// SPDX-License-Identifier: Apache-2.0

package vision

// Decode decodes a JPEG or PNG file to an image of three channels. Which it is,
// is told by its beginning. The pixels are those of Pillow's convert("RGB"), and
// so torchvision's, to the last bit: grey becomes three equal channels, inks
// become light, and what is transparent has the colour that is written under
// it. PNG of grey with 16 bits alone differs: Pillow clips it at 255, here its
// upper 8 bits count. A JPEG whose codes are damaged is decoded as far as libjpeg
// does, with grey where nothing is known; one whose end is missing is an error.
func Decode(b []byte) (Image, error) {
	f := files.Get().(*file)
	defer f.free()
	f.path = "an image"
	f.bytes = append(f.bytes[:0], b...)
	if err := f.header(); err != nil {
		return Image{}, err
	}
	img, err := f.decode(rectangle{0, 0, f.width, f.height}, nil)
	return img, err
}
