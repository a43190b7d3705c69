// SPDX-License-Identifier: Apache-2.0

package vision

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/cohort-ml/cohort/data"
)

// Transform makes an image of an image. It is a pure function of the image and
// of what it draws from the generator, and does not write into the image.
type Transform interface {
	Apply(r *rand.Rand, img Image) (Image, error)
}

// Apply is the data set of the samples of ds with the transforms applied, one
// after the other. What they draw is a function of the seed and the sample's
// key.
func Apply(ds data.Dataset[Sample], seed int64, transforms ...Transform) data.Dataset[Sample] {
	return &transformed{ds, seed, transforms}
}

type transformed struct {
	data.Dataset[Sample]
	seed       int64
	transforms []Transform
}

// Get implements [data.Dataset].
func (t *transformed) Get(ctx context.Context, key data.Key) (Sample, error) {
	r, transforms := rand.New(generator(t.seed, key)), t.transforms
	var s Sample
	var err error
	if set, ok := t.Dataset.(*Set); ok && set.open != nil && len(transforms) > 0 {
		s, transforms, err = set.getView(ctx, key, r, transforms)
	} else {
		s, err = t.Dataset.Get(ctx, key)
	}
	if err != nil {
		return s, err
	}
	for _, f := range transforms {
		if s.Image, err = f.Apply(r, s.Image); err != nil {
			return s, err
		}
	}
	return s, nil
}

// Fingerprint is that of the data set, which need not have one: transforms
// change pixels, not the order of samples.
func (t *transformed) Fingerprint() string {
	if d, ok := t.Dataset.(interface{ Fingerprint() string }); ok {
		return d.Fingerprint()
	}
	return fmt.Sprintf("images n=%d", t.Len())
}

// generator is the one of a sample. The words of PCG's seed are mixed (with the
// finaliser of SplitMix64), since keys that differ in one bit must not give
// sequences that resemble each other.
func generator(seed int64, key data.Key) *rand.PCG {
	a := mix(uint64(seed) + 0x9e3779b97f4a7c15)
	b := mix(a ^ uint64(key.Epoch))
	return rand.NewPCG(a, mix(b+uint64(key.Index)))
}

func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// viewer is a transform that keeps a scaled part, which it can say before the
// pixels are there.
type viewer interface {
	Transform
	view(r *rand.Rand, width, height int) (view, error)
}

// render applies a viewer to an image that is there.
func render(t viewer, r *rand.Rand, img Image) (Image, error) {
	if err := img.check(); err != nil {
		return Image{}, err
	}
	v, err := t.view(r, img.Width, img.Height)
	if err != nil {
		return Image{}, err
	}
	return new(scaler).render(img, 0, 0, v), nil
}

// Resize scales so that the shorter side has Short pixels and the other keeps
// the proportion, as torchvision's Resize of one number does. Cubic takes bicubic weights in
// place of bilinear ones.
type Resize struct {
	Short int
	Cubic bool
}

// Apply implements [Transform].
func (t Resize) Apply(r *rand.Rand, img Image) (Image, error) { return render(t, r, img) }

func (t Resize) view(_ *rand.Rand, width, height int) (view, error) {
	w, h := t.Short, t.Short
	if width <= height {
		h = max(1, t.Short*height/width)
	} else {
		w = max(1, t.Short*width/height)
	}
	v, err := scaled(rectangle{0, 0, width, height}, w, h)
	v.cubic = t.Cubic
	return v, err
}

// ResizeTo scales to a size, whatever the proportion was. Cubic is as in [Resize].
type ResizeTo struct {
	Width, Height int
	Cubic         bool
}

// Apply implements [Transform].
func (t ResizeTo) Apply(r *rand.Rand, img Image) (Image, error) { return render(t, r, img) }

func (t ResizeTo) view(_ *rand.Rand, width, height int) (view, error) {
	v, err := scaled(rectangle{0, 0, width, height}, t.Width, t.Height)
	v.cubic = t.Cubic
	return v, err
}

// CenterCrop keeps the middle. An image that is smaller is an error.
type CenterCrop struct{ Width, Height int }

// Apply implements [Transform].
func (t CenterCrop) Apply(r *rand.Rand, img Image) (Image, error) { return render(t, r, img) }

func (t CenterCrop) view(_ *rand.Rand, width, height int) (view, error) {
	if t.Width < 1 || t.Height < 1 || t.Width > width || t.Height > height {
		return view{}, fmt.Errorf("vision: the middle %d·%d of an image of %d·%d pixels", t.Width, t.Height, width, height)
	}
	// torchvision rounds half to even, as Python does.
	x := int(math.RoundToEven(float64(width-t.Width) / 2))
	y := int(math.RoundToEven(float64(height-t.Height) / 2))
	return scaled(rectangle{x, y, t.Width, t.Height}, t.Width, t.Height)
}

// RandomCrop keeps Width·Height pixels from anywhere in the image, which gets
// Pad black pixels on each side first: the augmentation of small images (He et
// al. 2016, §4.2, with 4 pixels).
type RandomCrop struct{ Width, Height, Pad int }

// Apply implements [Transform].
func (t RandomCrop) Apply(r *rand.Rand, img Image) (Image, error) {
	w, h := img.Width+2*t.Pad, img.Height+2*t.Pad
	if t.Pad < 0 || t.Width < 1 || t.Height < 1 || t.Width > w || t.Height > h {
		return Image{}, fmt.Errorf("vision: a crop of %d·%d from an image of %d·%d pixels with %d around it", t.Width, t.Height, img.Width, img.Height, t.Pad)
	}
	x, y := r.IntN(w-t.Width+1)-t.Pad, r.IntN(h-t.Height+1)-t.Pad
	return crop(img, rectangle{x, y, t.Width, t.Height}), nil
}

// RandomResizedCrop cuts out a part of a random area and proportion and scales
// it to Width·Height (Szegedy et al. 2015, §6). The zero values of MinArea and
// MinRatio are torchvision's: 8 % of the area, and 3:4 to 4:3.
type RandomResizedCrop struct {
	Width, Height int
	MinArea       float64 // share of the image's area; the largest is 1
	MinRatio      float64 // of width to height; the largest is its inverse
	Cubic         bool    // as in [Resize]
}

// Apply implements [Transform].
func (t RandomResizedCrop) Apply(r *rand.Rand, img Image) (Image, error) { return render(t, r, img) }

func (t RandomResizedCrop) view(r *rand.Rand, width, height int) (view, error) {
	part, err := t.part(r, width, height)
	if err != nil {
		return view{}, err
	}
	v, err := scaled(part, t.Width, t.Height)
	v.cubic = t.Cubic
	return v, err
}

// part draws which part of an image is kept. After ten that do not fit it is
// the largest one in the middle whose proportion is allowed.
func (t RandomResizedCrop) part(r *rand.Rand, width, height int) (rectangle, error) {
	minArea, minRatio := t.MinArea, t.MinRatio
	if minArea == 0 {
		minArea = 0.08
	}
	if minRatio == 0 {
		minRatio = 3.0 / 4
	}
	if !(minArea > 0 && minArea <= 1 && minRatio > 0 && minRatio <= 1) {
		return rectangle{}, fmt.Errorf("vision: a random part of at least %v of the area with proportions from %v: want numbers above 0 and up to 1", minArea, minRatio)
	}
	area, spread := float64(width)*float64(height), math.Log(1/minRatio)
	for range 10 {
		a := area * (minArea + r.Float64()*(1-minArea))
		ratio := math.Exp(spread * (2*r.Float64() - 1))
		w := int(math.RoundToEven(math.Sqrt(a * ratio)))
		h := int(math.RoundToEven(math.Sqrt(a / ratio)))
		if w > 0 && h > 0 && w <= width && h <= height {
			return rectangle{r.IntN(width - w + 1), r.IntN(height - h + 1), w, h}, nil
		}
	}
	w, h := width, height
	switch ratio := float64(width) / float64(height); {
	case ratio < minRatio:
		h = max(1, int(math.RoundToEven(float64(w)/minRatio)))
	case ratio > 1/minRatio:
		w = max(1, int(math.RoundToEven(float64(h)/minRatio)))
	}
	return rectangle{(width - w) / 2, (height - h) / 2, w, h}, nil
}

// RandomFlip mirrors left and right in one of two cases.
type RandomFlip struct{}

// Apply implements [Transform].
func (RandomFlip) Apply(r *rand.Rand, img Image) (Image, error) {
	if r.Uint64()&1 == 0 {
		return img, nil
	}
	return flip(img), nil
}
