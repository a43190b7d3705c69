// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"bytes"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cohort-ml/cohort/internal/seeded"
)

// randomBytes returns n random bytes with others behind them that must stay.
func randomBytes(r *rand.Rand, n int) (all, part []byte) {
	all = make([]byte, n+64)
	for i := range all {
		all[i] = byte(r.Uint32())
	}
	return all, all[:n]
}

func within1(t *testing.T, what string, got []byte, want func(i int) float64) {
	t.Helper()
	for i, v := range got {
		if w := min(max(want(i), 0), 255); math.Abs(float64(v)-w) > 1 {
			t.Fatalf("%s: byte %d of %d is %d, want %v", what, i, len(got), v, w)
		}
	}
}

// TestInverseDCT: within 1 of the definition (T.81 §A.3.3) for what an image can
// be made of, and in every variant the same bits for anything.
func TestInverseDCT(t *testing.T) {
	seed := seeded.Of(t)
	forEachISA(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(seed, 0))
		for round := range 300 {
			var samples [64]float64
			var coef [64]int16
			for i := range samples {
				samples[i] = float64(r.IntN(256)) - 128
			}
			for v := range 8 {
				for u := range 8 {
					sum := 0.0
					for i, s := range samples {
						sum += s * cosine(i%8, u) * cosine(i/8, v)
					}
					coef[8*v+u] = int16(math.Round(sum / 4))
				}
			}
			if round%3 == 0 {
				for i := range coef {
					coef[i] = int16(r.Uint32())
				}
			}
			stride := 8 + r.IntN(20)
			all, dst := randomBytes(r, 7*stride+8)
			before := bytes.Clone(all)
			want := bytes.Clone(all)
			portableInverseDCT(want, stride, &coef)
			InverseDCT(dst, stride, &coef)
			if !bytes.Equal(all, want) {
				t.Fatal("the samples are not those of the portable kernel")
			}
			for i := range all {
				if inside := i < 7*stride+8 && i%stride < 8; !inside && all[i] != before[i] {
					t.Fatalf("byte %d outside of the block has changed", i)
				}
			}
			if round%3 != 0 {
				for y := range 8 {
					within1(t, "row", dst[y*stride:y*stride+8], func(x int) float64 {
						sum := 0.0
						for k, c := range coef {
							sum += float64(c) * cosine(x, k%8) * cosine(y, k/8)
						}
						return sum/4 + 128
					})
				}
			}
		}
	})
}

func cosine(x, u int) float64 {
	c := math.Cos(float64(2*x+1) * float64(u) * math.Pi / 16)
	if u == 0 {
		return c / math.Sqrt2
	}
	return c
}

func TestUpsample(t *testing.T) {
	seed := seeded.Of(t)
	forEachISA(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(seed, 0))
		for n := 1; n < 100; n++ {
			_, near := randomBytes(r, n+2)
			_, far := randomBytes(r, n+2)
			all, dst := randomBytes(r, 2*n)
			behind := bytes.Clone(all[2*n:])
			at := func(row []byte, i int) float64 { // new sample i lies a quarter before or behind the old one
				j := 1 + i/2
				return 0.75*float64(row[j]) + 0.25*float64(row[j-1+2*(i%2)])
			}
			UpsampleRow(dst, near)
			within1(t, "row", dst, func(i int) float64 { return at(near, i) })
			UpsampleRows(dst, near, far)
			within1(t, "rows", dst, func(i int) float64 { return 0.75*at(near, i) + 0.25*at(far, i) })
			want := make([]byte, 2*n)
			portableUpsampleRows(want, near, far)
			if !bytes.Equal(dst, want) || !bytes.Equal(all[2*n:], behind) {
				t.Fatalf("%d samples: not those of the portable kernel, or written behind", n)
			}
			UpsampleRow(dst, near)
			portableUpsampleRow(want, near)
			if !bytes.Equal(dst, want) {
				t.Fatalf("%d samples: not those of the portable kernel", n)
			}
		}
	})
}

func TestYCbCrToRGB(t *testing.T) {
	seed := seeded.Of(t)
	forEachISA(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(seed, 0))
		for n := 1; n < 100; n++ {
			_, y := randomBytes(r, n)
			_, u := randomBytes(r, n)
			_, v := randomBytes(r, n)
			all, dst := randomBytes(r, 3*n)
			behind := bytes.Clone(all[3*n:])
			YCbCrToRGB(dst, y, u, v)
			within1(t, "pixels", dst, func(i int) float64 {
				l, b, r := float64(y[i/3]), float64(u[i/3])-128, float64(v[i/3])-128
				return []float64{l + 1.402*r, l - 0.344136*b - 0.714136*r, l + 1.772*b}[i%3]
			})
			want := make([]byte, 3*n)
			portableYCbCrToRGB(want, y, u, v)
			if !bytes.Equal(dst, want) || !bytes.Equal(all[3*n:], behind) {
				t.Fatalf("%d pixels: not those of the portable kernel, or written behind", n)
			}
		}
	})
}

// TestScaleBytes scales rows and columns by random shares.
func TestScaleBytes(t *testing.T) {
	seed := seeded.Of(t)
	forEachISA(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(seed, 0))
		for range 300 {
			n, taps, channels := 1+r.IntN(60), 4*(1+r.IntN(4)), 1+2*r.IntN(2)
			w := PixelWeights{Taps: taps, Shares: make([]int32, n*taps)}
			old := taps + r.IntN(50)
			_, src := randomBytes(r, old*channels) // not a byte more than there are pixels
			src = slices.Clip(bytes.Clone(src))
			for i := range n {
				w.Start = append(w.Start, int32(r.IntN(old)))
				left := int32(1 << WeightBits)
				for k := range min(taps, old-int(w.Start[i])) {
					w.Shares[i*taps+k] = r.Int32N(left + 1)
					left -= w.Shares[i*taps+k]
				}
			}
			all, dst := randomBytes(r, n*channels)
			behind := bytes.Clone(all[n*channels:])
			ScaleRow(dst, src, &w, channels)
			within1(t, "row", dst, func(i int) float64 {
				sum := 0.0
				for k, s := range w.Shares[i/channels*taps : (i/channels+1)*taps] {
					if s != 0 {
						sum += float64(s) * float64(src[(int(w.Start[i/channels])+k)*channels+i%channels])
					}
				}
				return sum / (1 << WeightBits)
			})
			want := make([]byte, len(dst))
			portableScaleRow(want, src, &w, channels)
			if !bytes.Equal(dst, want) || !bytes.Equal(all[n*channels:], behind) {
				t.Fatalf("%d pixels of %d taps: not those of the portable kernel, or written behind", n, taps)
			}

			width, stride := 1+r.IntN(100), 120
			_, rows := randomBytes(r, (taps-1)*stride+width)
			all, dst = randomBytes(r, width)
			behind = bytes.Clone(all[width:])
			shares := w.Shares[:taps]
			ScaleColumns(dst, rows, stride, shares)
			want = make([]byte, width)
			portableScaleColumns(want, rows, stride, shares)
			if !bytes.Equal(dst, want) || !bytes.Equal(all[width:], behind) {
				t.Fatalf("%d bytes of %d rows: not those of the portable kernel, or written behind", width, taps)
			}
			within1(t, "columns", dst, func(i int) float64 {
				sum := 0.0
				for k, s := range shares {
					sum += float64(s) * float64(rows[k*stride+i])
				}
				return sum / (1 << WeightBits)
			})
		}
	})
}

func TestBytesToPlanes(t *testing.T) {
	seed := seeded.Of(t)
	forEachISA(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(seed, 0))
		scale, shift := [3]float32{0.01, -2, 0.017}, [3]float32{-1, 3, 0.5}
		for n := range 70 {
			_, src := randomBytes(r, 3*n)
			dst := make([]float32, 3*n+1)
			dst[3*n] = 7
			BytesToPlanes(dst, slices.Clip(bytes.Clone(src)), &scale, &shift)
			for i, v := range src {
				if got, want := dst[i%3*n+i/3], float32(float32(v)*scale[i%3])+shift[i%3]; got != want {
					t.Fatalf("%d pixels: byte %d becomes %v, want %v", n, i, got, want)
				}
			}
			if dst[3*n] != 7 {
				t.Fatal("written behind")
			}
		}
	})
}
