// SPDX-License-Identifier: Apache-2.0

package random

import "math"

// Philox is the counter-based generator Philox4x32 with ten rounds (Salmon,
// Moraes, Dror, Shaw: Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011).
// Key is the seed. Element index of a stream is a pure function of (Key,
// stream, index); the element number index sits in lane index%4 of block
// index/4. Different streams are independent sequences: number them by use
// (a parameter, a dropout layer at a step).
//
// The zero value is the generator with key 0. Methods may be called from any
// number of goroutines; two calls that fill the two halves of a slice give
// what one call gives.
type Philox struct{ Key uint64 }

const (
	philoxMul0 = 0xd2511f53
	philoxMul1 = 0xcd9e8d57
	philoxWeyl = 0x9e3779b9 // golden ratio
	philoxWeyr = 0xbb67ae85 // sqrt(3)-1
)

// Block returns the four words of block number block of a stream.
func (p Philox) Block(stream, block uint64) [4]uint32 {
	c0, c1 := uint32(block), uint32(block>>32)
	c2, c3 := uint32(stream), uint32(stream>>32)
	k0, k1 := uint32(p.Key), uint32(p.Key>>32)
	for range 10 {
		p0 := philoxMul0 * uint64(c0)
		p1 := philoxMul1 * uint64(c2)
		c0, c1, c2, c3 = uint32(p1>>32)^c1^k0, uint32(p1), uint32(p0>>32)^c3^k1, uint32(p0)
		k0 += philoxWeyl
		k1 += philoxWeyr
	}
	return [4]uint32{c0, c1, c2, c3}
}

// Uint32s fills dst with the words of elements offset, offset+1, …
func (p Philox) Uint32s(dst []uint32, stream, offset uint64) {
	for i := 0; i < len(dst); {
		at := offset + uint64(i)
		w := p.Block(stream, at/4)
		i += copy(dst[i:], w[at%4:])
	}
}

// Uniform fills dst with elements offset, offset+1, … of a stream, uniform in
// [lo, hi): 24 bits each, lo + u·(hi-lo) rounded once (so a result may be hi
// itself where rounding takes it there).
func (p Philox) Uniform(dst []float32, stream, offset uint64, lo, hi float32) {
	width := hi - lo
	for i := 0; i < len(dst); {
		at := offset + uint64(i)
		w := p.Block(stream, at/4)
		for _, word := range w[at%4:] {
			if i == len(dst) {
				return
			}
			dst[i] = fma32(float32(word>>8)*(1.0/(1<<24)), width, lo)
			i++
		}
	}
}

// NormalAt is element index of a stream, normal with the given mean and
// standard deviation. [Philox.Normal] is much faster for many.
func (p Philox) NormalAt(stream, index uint64, mean, std float32) float32 {
	var dst [1]float32
	p.Normal(dst[:], stream, index, mean, std)
	return dst[0]
}

// Normal fills dst with elements offset, offset+1, … of a stream, normal with
// the given mean and standard deviation (Box and Muller's transformation of
// two 32-bit uniforms for two elements; the tails end at 6.7 deviations).
func (p Philox) Normal(dst []float32, stream, offset uint64, mean, std float32) {
	m, d := float64(mean), float64(std)
	for i := 0; i < len(dst); {
		at := offset + uint64(i)
		w := p.Block(stream, at/4)
		if at%4 == 0 && len(dst)-i >= 4 {
			out := dst[i : i+4 : i+4]
			a, b := boxMuller(w[0], w[1])
			out[0], out[1] = float32(m+float64(d*a)), float32(m+float64(d*b))
			a, b = boxMuller(w[2], w[3])
			out[2], out[3] = float32(m+float64(d*a)), float32(m+float64(d*b))
			i += 4
			continue
		}
		var z [4]float64
		z[0], z[1] = boxMuller(w[0], w[1])
		z[2], z[3] = boxMuller(w[2], w[3])
		for _, v := range z[at%4:] {
			if i == len(dst) {
				return
			}
			dst[i] = float32(m + float64(d*v))
			i++
		}
	}
}

// boxMuller maps two words to two independent standard normals.
//
// The logarithm, sine and cosine are written out here, with every product
// rounded by an explicit conversion, because math's may be assembly or fused
// on one architecture and not on another, and these values are promised to be
// the same everywhere. Their errors are far below a float32's resolution.
func boxMuller(a, b uint32) (x, y float64) {
	// Radius: sqrt(-2·ln u) with u = (a+1)/2^32 in (0, 1].
	f := math.Float64bits(float64(uint64(a) + 1))
	exp := int(f>>52) - 1023 - 32
	m := math.Float64frombits(f&(1<<52-1) | 1023<<52) // [1, 2)
	if m > math.Sqrt2 {
		m, exp = m*0.5, exp+1
	}
	// ln m = 2·artanh(s), s = (m-1)/(m+1), |s| < 0.1716.
	s := (m - 1) / (m + 1)
	q := float64(s * s)
	t := 1.0/11 + float64(q*(1.0/13))
	t = 1.0/9 + float64(q*t)
	t = 1.0/7 + float64(q*t)
	t = 1.0/5 + float64(q*t)
	t = 1.0/3 + float64(q*t)
	t = 1 + float64(q*t)
	ln := float64(float64(exp)*math.Ln2) + float64(2*float64(s*t))
	r := math.Sqrt(-2 * ln)

	// Angle: 2π·b/2^32 as a quadrant and a rest in [-π/4, π/4).
	b += 1 << 29
	v := float64(int32(b&(1<<30-1))-1<<29) * (2 * math.Pi / (1 << 32))
	q = float64(v * v)
	t = -1.0/5040 + float64(q*(1.0/362880))
	t = 1.0/120 + float64(q*t)
	t = -1.0/6 + float64(q*t)
	t = 1 + float64(q*t)
	sin := float64(v * t)
	t = 1.0/40320 - float64(q*(1.0/3628800))
	t = -1.0/720 + float64(q*t)
	t = 1.0/24 + float64(q*t)
	t = -1.0/2 + float64(q*t)
	cos := 1 + float64(q*t)
	switch b >> 30 {
	case 1:
		sin, cos = cos, -sin
	case 2:
		sin, cos = -sin, -cos
	case 3:
		sin, cos = -cos, sin
	}
	return float64(r * cos), float64(r * sin)
}
