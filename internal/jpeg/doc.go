// SPDX-License-Identifier: Apache-2.0

// Package jpeg decodes JPEG files fast enough to train on them.
//
// It decodes what cameras and data sets have: eight bits, Huffman codes,
// sequential or progressive, grey or YCbCr with the usual chroma samplings.
// What is rare (CMYK, RGB, odd samplings) is ErrUnsupported, and the caller
// may ask image/jpeg instead. The pixels are those of libjpeg's defaults to the
// last bit (its accurate integer transform, its triangle filter for chroma), and
// so the pixels that Pillow and torchvision train on.
//
// A Decoder keeps its memory from one file to the next; it belongs to one
// goroutine. It may be asked for a part of an image: then only the blocks that
// the part needs are transformed, and of a sequential file nothing below it is
// read. The pixels are the same as those of the whole.
//
// A file is not trusted: every table and size is checked, memory is bounded by
// the pixels that a caller allows, and codes that make no sense end as errors or
// as wrong pixels, never outside of the buffers. What the entropy coding does not
// notice, as no decoder can, is a wrong image.
//
// References: ITU-T T.81 (markers §B, Huffman §F.2, progressive §G.2), and for
// the transform Loeffler, Ligtenberg and Moschytz 1989.
package jpeg
