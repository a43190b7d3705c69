// SPDX-License-Identifier: Apache-2.0

package kernel

// This file has the arithmetic of images of bytes: what a JPEG decoder, scaling
// and the way into a batch consist of. All is in whole numbers but the last, and
// every variant gives the same bits. Nothing here uses the pool: images are made
// by several goroutines already.

// InverseDCT makes the samples of a block of 8·8 from its coefficients, row by
// row, and writes them to 8 rows of dst that are stride apart. It is the
// "accurate integer" transform of libjpeg: constants of 13 bits, columns first,
// 2 bits more than a byte between the passes, 128 added, clipped to bytes.
func InverseDCT(dst []byte, stride int, coef *[64]int16) {
	_ = dst[7*stride+7]
	inverseDCT(dst, stride, coef)
}

// UpsampleRow doubles a row: between two samples lie two new ones, at a quarter
// and at three quarters of the way. src has the neighbours of the n samples at
// its ends, dst 2n.
func UpsampleRow(dst, src []byte) {
	n := len(src) - 2
	upsampleRow(dst[:2*n], src)
}

// UpsampleRows doubles a row that lies at a quarter of the way from near to
// far. Both have the neighbours of the n samples at their ends, dst 2n.
func UpsampleRows(dst, near, far []byte) {
	n := len(near) - 2
	upsampleRows(dst[:2*n], near, far[:n+2])
}

// YCbCrToRGB converts len(y) pixels (JFIF: ITU-R BT.601, full range) to bytes
// red, green, blue.
func YCbCrToRGB(dst, y, cb, cr []byte) {
	n := len(y)
	ycbcrToRGB(dst[:3*n], y, cb[:n], cr[:n])
}

// PixelWeights are the shares that pixels of a row have in the pixels of a
// scaled one, in whole numbers of 1/2²².
type PixelWeights struct {
	Start  []int32 // of each new pixel: the first old one
	Taps   int     // old pixels in a new one, even
	Shares []int32 // [len(Start), Taps]; those behind the last old pixel are 0
}

// WeightBits is the precision of [PixelWeights].
const WeightBits = 22

// ScaleRow makes the pixels of a row of channels 1 or 3 of those of src. There
// must be a pixel for each share, but for those that are 0.
func ScaleRow(dst, src []byte, w *PixelWeights, channels int) {
	scaleRow(dst[:len(w.Start)*channels], src, w, channels)
}

// ScaleColumns makes one row of the rows of src that are stride apart, from the
// first on, with a share each.
func ScaleColumns(dst, src []byte, stride int, shares []int32) {
	_ = src[(len(shares)-1)*stride+len(dst)-1]
	scaleColumns(dst, src, stride, shares)
}

// BytesToPlanes makes planes of floats of the pixels of three channels in src:
// plane c, which begins at dst[c·n], is scale[c]·byte + shift[c], where n is the
// number of pixels.
func BytesToPlanes(dst []float32, src []byte, scale, shift *[3]float32) {
	n := len(src) / 3
	bytesToPlanes(dst[:3*n], src[:3*n], scale, shift)
}
