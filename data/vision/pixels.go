// SPDX-License-Identifier: Apache-2.0

package vision

import "math"

// rectangle is a part of an image. It may reach beyond the image, where all is
// black.
type rectangle struct{ x, y, width, height int }

func whole(img Image) rectangle { return rectangle{0, 0, img.Width, img.Height} }

// crop copies a part.
func crop(img Image, part rectangle) Image {
	if part == whole(img) {
		return img
	}
	out := newImage(part.width, part.height, img.Channels)
	from, to := max(part.x, 0), min(part.x+part.width, img.Width)
	for y := range part.height {
		if sy := part.y + y; sy >= 0 && sy < img.Height && from < to {
			copy(out.row(y)[(from-part.x)*img.Channels:], img.row(sy)[from*img.Channels:to*img.Channels])
		}
	}
	return out
}

// flip mirrors left and right.
func flip(img Image) Image {
	out := newImage(img.Width, img.Height, img.Channels)
	for y := range img.Height {
		src, dst := img.row(y), out.row(y)
		if img.Channels == 1 {
			for x, v := range src {
				dst[len(dst)-1-x] = v
			}
			continue
		}
		for i, j := 0, len(dst)-3; j >= 0; i, j = i+3, j-3 {
			dst[j], dst[j+1], dst[j+2] = src[i], src[i+1], src[i+2]
		}
	}
	return out
}

// weights are the shares of source pixels in the pixels of a scaled row or
// column: pixel i is the sum of the pixels from start[i] on, each times
// one of shares[i·taps:], which are whole numbers of 1/2²².
type weights struct {
	start  []int
	shares []int32
	taps   int
}

const weightBits = 22

// triangle returns the weights that scale n pixels, from and on, to size. When
// it scales down, the triangle is as wide as two pixels of the result: every
// source pixel counts, so that there are no gaps to alias through. Pillow's
// bilinear filter is the same to the last bit (with rows scaled before columns,
// as it does but for some tall images from version 13 on), and with it
// torchvision's Resize of an image.
func triangle(from, n, size int) weights {
	ratio := float64(n) / float64(size)
	support := max(ratio, 1)
	w := weights{start: make([]int, size), taps: int(math.Ceil(support))*2 + 1}
	w.shares = make([]int32, size*w.taps)
	share := make([]float64, w.taps)
	for i := range size {
		center := (float64(i) + 0.5) * ratio
		lo := max(int(center-support+0.5), 0)
		hi := min(int(center+support+0.5), n)
		sum := 0.0
		for k := lo; k < hi; k++ {
			s := max(0, 1-math.Abs((float64(k)-center+0.5)*(1/support)))
			share[k-lo] = s
			sum += s
		}
		w.start[i] = from + lo
		for k := range hi - lo {
			w.shares[i*w.taps+k] = int32(share[k]*(1/sum)*(1<<weightBits) + 0.5)
		}
	}
	return w
}

// scale scales a part, which is inside the image, to a size: the rows first,
// rounded to bytes, then the columns.
func scale(img Image, part rectangle, width, height int) Image {
	if part.width == width && part.height == height {
		return crop(img, part)
	}
	src, top := img, part.y
	if part.width != width || part.x != 0 || part.width != img.Width {
		src, top = scaleRows(img, part, width), 0
	}
	if part.height == height {
		return crop(src, rectangle{0, top, width, height})
	}
	return scaleColumns(src, top, part.height, height)
}

// scaleRows scales the rows of a part.
func scaleRows(img Image, part rectangle, width int) Image {
	out := newImage(width, part.height, img.Channels)
	w := triangle(part.x, part.width, width)
	for y := range part.height {
		src, dst := img.row(part.y+y), out.row(y)
		for x, start := range w.start {
			shares := w.shares[x*w.taps : (x+1)*w.taps]
			for c := range img.Channels {
				sum := int32(1) << (weightBits - 1)
				for k, share := range shares {
					if share != 0 {
						sum += share * int32(src[(start+k)*img.Channels+c])
					}
				}
				dst[x*img.Channels+c] = clip(sum)
			}
		}
	}
	return out
}

// scaleColumns scales n rows from top on to height rows.
func scaleColumns(img Image, top, n, height int) Image {
	out := newImage(img.Width, height, img.Channels)
	w := triangle(top, n, height)
	sums := make([]int32, img.Width*img.Channels)
	for y, start := range w.start {
		for i := range sums {
			sums[i] = 1 << (weightBits - 1)
		}
		for k, share := range w.shares[y*w.taps : (y+1)*w.taps] {
			if share == 0 {
				continue
			}
			for i, v := range img.row(start + k) {
				sums[i] += share * int32(v)
			}
		}
		dst := out.row(y)
		for i, s := range sums {
			dst[i] = clip(s)
		}
	}
	return out
}

// clip rounds a sum of weighted bytes to a byte.
func clip(sum int32) byte { return byte(min(max(sum>>weightBits, 0), 255)) }
