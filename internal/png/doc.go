// SPDX-License-Identifier: Apache-2.0

// Package png decodes PNG files to rows of red, green and blue.
//
// It decodes every kind that the standard knows: grey, colour and palettes, 1
// to 16 bits, with alpha and without, interlaced or not. The pixels are those
// of Pillow's convert("RGB"): alpha is left out, so what is transparent has the
// colour that is written under it, and of 16 bits the upper 8 count. Only grey
// of 16 bits differs: Pillow clips it at 255, which leaves nearly all of it
// white, and here its upper 8 bits count too. Of an animation, the first image
// is decoded.
//
// A Decoder keeps its memory from one file to the next; it belongs to one
// goroutine. It may be asked for a part of an image, and needs memory for two
// rows of it besides the result, whatever its size.
//
// A file is not trusted: sizes are checked before memory is taken. As Pillow,
// the decoder checks the sums of the chunks before the image, and reads nothing
// behind the last row.
//
// Reference: W3C, Portable Network Graphics (PNG) Specification.
package png
