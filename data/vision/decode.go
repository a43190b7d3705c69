// SPDX-License-Identifier: Apache-2.0

package vision

import (
	"context"
	"fmt"
)

// Decode decodes a JPEG or PNG file to an image of three channels. Which it is,
// is told by its beginning. The pixels are those of Pillow's convert("RGB"), and
// so torchvision's, to the last bit: grey becomes three equal channels, inks
// become light, and what is transparent has the colour that is written under
// it. PNG of grey with 16 bits alone differs: Pillow clips it at 255, here its
// upper 8 bits count. A JPEG whose codes are damaged is decoded as far as libjpeg
// does, with grey where nothing is known; one whose end is missing is an error.
//
// What all goroutines decode at a time takes at most a gigabyte: Decode waits for
// others, and an image that needs more is an error.
func Decode(b []byte) (Image, error) {
	f := files.Get().(*file)
	defer f.free()
	f.path, f.bytes = "an image", b
	defer func() { f.bytes = nil }() // they are the caller's
	if err := f.header(); err != nil {
		return Image{}, err
	}
	need := f.need()
	if need > decoding.size {
		return Image{}, decoding.tooLarge(fmt.Sprintf("vision: an image of %d·%d pixels", f.width, f.height), need)
	}
	if err := decoding.take(context.Background(), need); err != nil {
		return Image{}, err
	}
	f.taken = need
	return f.decode(rectangle{0, 0, f.width, f.height}, nil)
}
