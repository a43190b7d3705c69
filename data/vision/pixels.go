// SPDX-License-Identifier: Apache-2.0

package vision

import (
	"fmt"
	"math"

	"github.com/cohort-ml/cohort/internal/kernel"
)

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

// view says what is made of an image: a part of it, scaled to a size, and of
// that a window. So that of an image no more is decoded and scaled than is
// kept.
type view struct {
	part          rectangle // inside the image
	width, height int       // that the part is scaled to
	window        rectangle // inside of these
	cubic         bool      // not bilinear
}

// scaled is the view of a whole part.
func scaled(part rectangle, width, height int) (view, error) {
	if width < 1 || height < 1 || width > maxPixels/height {
		return view{}, fmt.Errorf("vision: resize to %d·%d pixels, want at least one and at most %d", width, height, maxPixels)
	}
	return view{part: part, width: width, height: height, window: rectangle{0, 0, width, height}}, nil
}

// axis is one dim of a view: n pixels from `from` on are scaled to size pixels,
// of which those from lo to hi are made.
type axis struct {
	from, n, size, lo, hi int
	cubic                 bool
}

func (v view) x() axis {
	return axis{v.part.x, v.part.width, v.width, v.window.x, v.window.x + v.window.width, v.cubic}
}

func (v view) y() axis {
	return axis{v.part.y, v.part.height, v.height, v.window.y, v.window.y + v.window.height, v.cubic}
}

// reach returns the pixels from and to (not with) that a new pixel is made of,
// and where its center lies.
func (a axis) reach(i int) (from, to int, center float64) {
	ratio := float64(a.n) / float64(a.size)
	support := a.support()
	center = (float64(i) + 0.5) * ratio
	return max(int(center-support+0.5), 0), min(int(center+support+0.5), a.n), center
}

// span returns the source pixels that all new ones are made of.
func (a axis) span() (from, to int) {
	if a.n == a.size {
		return a.from + a.lo, a.from + a.hi
	}
	from, _, _ = a.reach(a.lo)
	_, to, _ = a.reach(a.hi - 1)
	return a.from + from, a.from + to
}

// source returns the part of the image that a view is made of.
func (v view) source() rectangle {
	x0, x1 := v.x().span()
	y0, y1 := v.y().span()
	return rectangle{x0, y0, x1 - x0, y1 - y0}
}

// support is how far from the center of a new pixel the old ones count.
func (a axis) support() float64 {
	support := max(float64(a.n)/float64(a.size), 1)
	if a.cubic {
		support *= 2
	}
	return support
}

// cubic is Keys' kernel with Pillow's and torchvision's constant -0.5, 0 from 2 on.
func cubic(x float64) float64 {
	const k = -0.5
	switch x = math.Abs(x); {
	case x < 1:
		return ((k+2)*x-(k+3))*x*x + 1
	case x < 2:
		return (((x-5)*x+8)*x - 4) * k
	}
	return 0
}

// weigh sets the weights of an axis, counted from the pixel origin on. When
// it scales down, the triangle of bilinear weights is as wide as two pixels of the result: every
// source pixel counts, so that there are no gaps to alias through. Pillow's
// bilinear filter is the same to the last bit (with rows scaled before columns,
// as it does but for some tall images from version 13 on), and with it
// torchvision's Resize of an image. So is the bicubic one.
func (a axis) weigh(w *kernel.PixelWeights, origin int) {
	support, scale := a.support(), max(float64(a.n)/float64(a.size), 1)
	w.Taps = (int(math.Ceil(support))*2 + 1 + 3) &^ 3 // whole groups of the kernel
	num := a.hi - a.lo
	w.Start = sized(w.Start, num)
	w.Shares = sized(w.Shares, num*w.Taps)
	clear(w.Shares)
	var buffer [64]float64
	share := buffer[:]
	if w.Taps > len(share) {
		share = make([]float64, w.Taps)
	}
	for i := range num {
		from, to, center := a.reach(a.lo + i)
		sum := 0.0
		for k := from; k < to; k++ {
			at := (float64(k) - center + 0.5) * (1 / scale)
			s := max(0, 1-math.Abs(at))
			if a.cubic {
				s = cubic(at)
			}
			share[k-from] = s
			sum += s
		}
		w.Start[i] = int32(a.from + from - origin)
		for k := range to - from {
			w.Shares[i*w.Taps+k] = roundAway(share[k] * (1 / sum) * (1 << kernel.WeightBits))
		}
	}
}

// roundAway rounds to the nearest whole number, halves away from zero.
func roundAway(x float64) int32 {
	if x < 0 {
		return int32(x - 0.5)
	}
	return int32(x + 0.5)
}

// sized returns a slice of a length, of the same memory if it is enough.
func sized[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}

// scaler is the memory of scaling.
type scaler struct {
	x, y kernel.PixelWeights
	rows []byte
}

// render makes the view of an image of which img is the part at x0, y0: the
// rows first, rounded to bytes, then the columns.
func (s *scaler) render(img Image, x0, y0 int, v view) Image {
	src := v.source()
	if v.part.width == v.width && v.part.height == v.height {
		return crop(img, rectangle{src.x - x0, src.y - y0, src.width, src.height})
	}
	width, height, channels := v.window.width, v.window.height, img.Channels
	var rows Image // as wide as the result, its first row is src.y of the image
	if v.part.width == v.width {
		rows = crop(img, rectangle{src.x - x0, src.y - y0, src.width, src.height})
	} else {
		v.x().weigh(&s.x, x0)
		if v.part.height == v.height { // then it is the result
			rows = newImage(width, src.height, channels)
		} else {
			s.rows = sized(s.rows, width*src.height*channels)
			rows = Image{width, src.height, channels, s.rows}
		}
		for y := range src.height {
			kernel.ScaleRow(rows.row(y), img.Pix[(src.y-y0+y)*img.Width*channels:], &s.x, channels)
		}
	}
	if v.part.height == v.height {
		return rows
	}
	v.y().weigh(&s.y, src.y)
	out := newImage(width, height, channels)
	for y, start := range s.y.Start {
		taps := s.y.Shares[y*s.y.Taps : (y+1)*s.y.Taps]
		for taps[len(taps)-1] == 0 { // behind the last row there may be none
			taps = taps[:len(taps)-1]
		}
		kernel.ScaleColumns(out.row(y), rows.Pix[int(start)*width*channels:], width*channels, taps)
	}
	return out
}
