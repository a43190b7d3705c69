// SPDX-License-Identifier: Apache-2.0

// Package jpeg decodes JPEG files fast enough to train on them.
//
// It decodes eight bits with Huffman codes, sequential or progressive: grey,
// YCbCr, RGB, and inks (CMYK, YCCK), with any sampling whose factors divide each
// other. Lossless, hierarchical and arithmetic files and those of twelve bits are
// ErrUnsupported. The pixels are those of libjpeg-turbo's defaults to the last
// bit (its accurate integer transform, its triangle filter for chroma, its
// smoothing of progressive files whose last scans are missing), with inks on
// white as Pillow shows them, and so the pixels that Pillow and torchvision train
// on.
//
// A Decoder keeps its memory from one file to the next; it belongs to one
// goroutine. It may be asked for a part of an image: then only the blocks that
// the part needs are transformed, and of a sequential file nothing below it is
// read. The pixels are the same as those of the whole.
//
// A file is not trusted: every table and size is checked, memory is bounded by
// the pixels that a caller allows, and codes that make no sense end as wrong
// pixels, never outside of the buffers. As in libjpeg, what is missing is grey up
// to the next restart marker, and only a file without an end is an error.
//
// References: ITU-T T.81 (markers §B, Huffman §F.2, progressive §G.2), and for
// the transform Loeffler, Ligtenberg and Moschytz 1989.
package jpeg
