// SPDX-License-Identifier: Apache-2.0

package kernel

//go:generate go -C _asm run ./image -out ../image_amd64.s -stubs ../image_stubs_amd64.go -pkg kernel

// The kernels take whole groups. A rest is done with the group that ends where
// it does, which computes some results twice; what is shorter than a group is
// done in Go.

func inverseDCT(dst []byte, stride int, coef *[64]int16) {
	if useISA < avx2 {
		portableInverseDCT(dst, stride, coef)
		return
	}
	inverseDCT256(&dst[0], stride, &coef[0])
}

func upsampleRow(dst, src []byte) {
	n := len(src) - 2
	if n < 16 || useISA < avx2 {
		portableUpsampleRow(dst, src)
		return
	}
	upsampleRow256(&dst[0], &src[0], n&^15)
	if n&15 != 0 {
		upsampleRow256(&dst[2*n-32], &src[n-16], 16)
	}
}

func upsampleRows(dst, near, far []byte) {
	n := len(near) - 2
	if n < 16 || useISA < avx2 {
		portableUpsampleRows(dst, near, far)
		return
	}
	upsampleRows256(&dst[0], &near[0], &far[0], n&^15)
	if n&15 != 0 {
		upsampleRows256(&dst[2*n-32], &near[n-16], &far[n-16], 16)
	}
}

func ycbcrToRGB(dst, y, cb, cr []byte) {
	n := len(y)
	if n < 16 || useISA < avx2 {
		portableYCbCrToRGB(dst, y, cb, cr)
		return
	}
	ycbcrToRGB256(&dst[0], &y[0], &cb[0], &cr[0], n&^15)
	if n&15 != 0 {
		ycbcrToRGB256(&dst[3*(n-16)], &y[n-16], &cb[n-16], &cr[n-16], 16)
	}
}

func scaleRow(dst, src []byte, w *PixelWeights, channels int) {
	n := len(w.Start) - 1 // the kernel writes into the pixel behind
	if channels == 3 && w.Taps%4 == 0 && useISA >= avx2 {
		for n > 0 && 3*(int(w.Start[n-1])+w.Taps)+4 > len(src) {
			n--
		}
		if n > 0 {
			scaleRow256(&dst[0], &src[0], &w.Start[0], &w.Shares[0], w.Taps, n)
			rest := PixelWeights{w.Start[n:], w.Taps, w.Shares[n*w.Taps:]}
			portableScaleRow(dst[3*n:], src, &rest, 3)
			return
		}
	}
	portableScaleRow(dst, src, w, channels)
}

func scaleColumns(dst, src []byte, stride int, shares []int32) {
	n := len(dst)
	if n < 32 || useISA < avx2 {
		portableScaleColumns(dst, src, stride, shares)
		return
	}
	scaleColumns256(&dst[0], &src[0], stride, &shares[0], len(shares), n&^31)
	if n&31 != 0 {
		scaleColumns256(&dst[n-32], &src[n-32], stride, &shares[0], len(shares), 32)
	}
}

func bytesToPlanes(dst []float32, src []byte, scale, shift *[3]float32) {
	n := len(src) / 3
	done := 0
	if useISA >= avx2 {
		if done = (len(src) - 4) / 3 &^ 7; done > 0 {
			bytesToPlanes256(&dst[0], 4*n, &src[0], done, &scale[0], &shift[0])
		}
		done = max(done, 0)
	}
	portableBytesToPlanes(dst, src, scale, shift, done)
}
