// SPDX-License-Identifier: Apache-2.0

package kernel

// Constants of the transform, in units of 1/2¹³ (Loeffler, Ligtenberg and
// Moschytz 1989, figure 1).
const (
	dct0298 = 2446
	dct0390 = 3196
	dct0541 = 4433
	dct0765 = 6270
	dct0899 = 7373
	dct1175 = 9633
	dct1501 = 12299
	dct1847 = 15137
	dct1961 = 16069
	dct2053 = 16819
	dct2562 = 20995
	dct3072 = 25172
)

// inverse8 transforms 8 values that are step apart, adds round and divides by
// 2^shift.
func inverse8(v []int32, step int, round int32, shift uint) {
	_ = v[7*step]
	x0, x1, x2, x3 := v[0], v[step], v[2*step], v[3*step]
	x4, x5, x6, x7 := v[4*step], v[5*step], v[6*step], v[7*step]
	a := (x2 + x6) * dct0541
	even2 := a - x6*dct1847
	even3 := a + x2*dct0765
	even0 := (x0+x4)<<13 + round
	even1 := (x0-x4)<<13 + round
	e0, e3, e1, e2 := even0+even3, even0-even3, even1+even2, even1-even2
	z1, z2, z3, z4 := x7+x1, x5+x3, x7+x3, x5+x1
	z5 := (z3 + z4) * dct1175
	z1, z2 = z1*-dct0899, z2*-dct2562
	z3, z4 = z3*-dct1961+z5, z4*-dct0390+z5
	o0 := x7*dct0298 + z1 + z3
	o1 := x5*dct2053 + z2 + z4
	o2 := x3*dct3072 + z2 + z3
	o3 := x1*dct1501 + z1 + z4
	v[0], v[7*step] = (e0+o3)>>shift, (e0-o3)>>shift
	v[step], v[6*step] = (e1+o2)>>shift, (e1-o2)>>shift
	v[2*step], v[5*step] = (e2+o1)>>shift, (e2-o1)>>shift
	v[3*step], v[4*step] = (e3+o0)>>shift, (e3-o0)>>shift
}

func portableInverseDCT(dst []byte, stride int, coef *[64]int16) {
	var v [64]int32
	for i, c := range coef {
		v[i] = int32(c)
	}
	for x := range 8 {
		inverse8(v[x:], 8, 1<<10, 11)
	}
	for y := range 8 {
		row := v[8*y : 8*y+8]
		inverse8(row, 1, 1<<17+128<<18, 18)
		for x, s := range row {
			dst[y*stride+x] = clipByte(s)
		}
	}
}

func clipByte(v int32) byte { return byte(min(max(v, 0), 255)) }

func portableUpsampleRow(dst, src []byte) {
	for i := range len(src) - 2 {
		v := 3 * int32(src[i+1])
		dst[2*i] = byte((v + int32(src[i]) + 1) >> 2)
		dst[2*i+1] = byte((v + int32(src[i+2]) + 2) >> 2)
	}
}

func portableUpsampleRows(dst, near, far []byte) {
	sum := func(i int) int32 { return 3*int32(near[i]) + int32(far[i]) }
	before, at := sum(0), sum(1)
	for i := range len(near) - 2 {
		after := sum(i + 2)
		dst[2*i] = byte((3*at + before + 8) >> 4)
		dst[2*i+1] = byte((3*at + after + 7) >> 4)
		before, at = at, after
	}
}

func portableYCbCrToRGB(dst, y, cb, cr []byte) {
	for i, l := range y {
		u, v := int32(cb[i])-128, int32(cr[i])-128
		dst[3*i] = clipByte(int32(l) + (v*91881+1<<15)>>16)
		dst[3*i+1] = clipByte(int32(l) + (u*-22554-v*46802+1<<15)>>16)
		dst[3*i+2] = clipByte(int32(l) + (u*116130+1<<15)>>16)
	}
}

func portableScaleRow(dst, src []byte, w *PixelWeights, channels int) {
	for i, start := range w.Start {
		shares := w.Shares[i*w.Taps : (i+1)*w.Taps]
		for c := range channels {
			sum := int32(1) << (WeightBits - 1)
			for k, share := range shares {
				if share != 0 {
					sum += share * int32(src[(int(start)+k)*channels+c])
				}
			}
			dst[i*channels+c] = clipByte(sum >> WeightBits)
		}
	}
}

func portableScaleColumns(dst, src []byte, stride int, shares []int32) {
	for i := range dst {
		sum := int32(1) << (WeightBits - 1)
		for k, share := range shares {
			sum += share * int32(src[k*stride+i])
		}
		dst[i] = clipByte(sum >> WeightBits)
	}
}

// portableBytesToPlanes does the pixels from a first one on.
func portableBytesToPlanes(dst []float32, src []byte, scale, shift *[3]float32, first int) {
	n := len(src) / 3
	for c := range 3 {
		a, b, plane := scale[c], shift[c], dst[c*n:(c+1)*n]
		for i := first; i < n; i++ {
			plane[i] = float32(float32(src[3*i+c])*a) + b // not fused: the same everywhere
		}
	}
}
