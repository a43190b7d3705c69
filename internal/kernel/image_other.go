// SPDX-License-Identifier: Apache-2.0

//go:build !amd64

package kernel

func inverseDCT(dst []byte, stride int, coef *[64]int16) { portableInverseDCT(dst, stride, coef) }

func upsampleRow(dst, src []byte) { portableUpsampleRow(dst, src) }

func upsampleRows(dst, near, far []byte) { portableUpsampleRows(dst, near, far) }

func ycbcrToRGB(dst, y, cb, cr []byte) { portableYCbCrToRGB(dst, y, cb, cr) }

func scaleRow(dst, src []byte, w *PixelWeights, channels int) {
	portableScaleRow(dst, src, w, channels)
}

func scaleColumns(dst, src []byte, stride int, shares []int32) {
	portableScaleColumns(dst, src, stride, shares)
}

func bytesToPlanes(dst []float32, src []byte, scale, shift *[3]float32) {
	portableBytesToPlanes(dst, src, scale, shift, 0)
}
