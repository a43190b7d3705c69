// SPDX-License-Identifier: Apache-2.0

package vision

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"

	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/internal/jpeg"
	"github.com/cohort-ml/cohort/internal/png"
)

const (
	largeScratch = 1 << 25 // bytes: what is larger is not kept for the next image
	hugeScratch  = 1 << 27 // bytes that are worth a collection, which is short beside their decoding
)

// file is an encoded image that was opened, and the memory for decoding, which
// is used again.
type file struct {
	path          string
	bytes         []byte
	taken         int64 // of the budget for decoding
	width, height int
	codec         codec // of the file
	jpeg          jpeg.Decoder
	png           png.Decoder
	pixels        []byte
	scaler        scaler
}

// codec opens a file, and decodes a part of it.
type codec interface {
	Open(file []byte) (width, height int, err error)
	Memory() int64 // that decoding takes, besides the result
	Decode(dst []byte, x, y, width, height int) error
}

// files are at hand for whoever decodes: as many as there are workers.
var files = sync.Pool{New: func() any { return new(file) }}

// open reads a file and its header.
func (f *file) open(ctx context.Context, path string) error {
	f.path = path
	size, err := f.load(ctx, path, 0)
	if err == nil {
		err = f.header()
	}
	if err != nil {
		return &Error{path, "", err}
	}
	// More memory is taken only if nobody waits for it, or at once with that of the
	// file: who held some while it waits could wait for one who does too.
	need := f.need()
	if size+need > decoding.size {
		return &Error{path, "", decoding.tooLarge(fmt.Sprintf("an image of %d·%d pixels", f.width, f.height), size+need)}
	}
	if decoding.tryTake(need) {
		f.taken += need
		return nil
	}
	f.bytes = nil
	decoding.give(f.taken)
	f.taken = 0
	if _, err = f.load(ctx, path, need); err == nil {
		err = f.header()
	}
	if err == nil && f.need() > need {
		err = errors.New("the file changes while it is read")
	}
	if err != nil {
		return &Error{path, "", err}
	}
	return nil
}

// load takes memory for a file and for more, and reads the file.
func (f *file) load(ctx context.Context, path string, more int64) (size int64, err error) {
	r, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer r.Close()
	info, err := r.Stat()
	if err != nil {
		return 0, err
	}
	if size = info.Size(); !info.Mode().IsRegular() {
		return 0, fmt.Errorf("a %v, want a file", info.Mode().Type())
	}
	if size+more > decoding.size {
		return 0, decoding.tooLarge("the file", size+more)
	}
	if err := decoding.take(ctx, size+more); err != nil {
		return 0, err
	}
	f.taken = size + more
	f.bytes = sized(f.bytes, int(size))
	t := data.Reading(ctx)
	_, err = io.ReadFull(r, f.bytes)
	t.Done()
	return size, err
}

// header finds the size.
func (f *file) header() (err error) {
	switch {
	case bytes.HasPrefix(f.bytes, []byte(png.Magic)):
		f.codec = &f.png
	case bytes.HasPrefix(f.bytes, []byte("\xff\xd8")):
		f.codec = &f.jpeg
	case len(f.bytes) == 0:
		return errors.New("the file is empty")
	default:
		return fmt.Errorf("%s where a JPEG or PNG is wanted: convert it", kindOf(f.bytes[:min(len(f.bytes), 64)]))
	}
	f.width, f.height, err = f.codec.Open(f.bytes)
	return err
}

// need is how many bytes it takes to decode the whole image: at least, if they
// are more than there may be.
func (f *file) need() int64 {
	if int64(f.width) > decoding.size/3/int64(f.height) {
		return decoding.size + 1
	}
	return f.codec.Memory() + 3*int64(f.width)*int64(f.height)
}

// decode returns a part of the image in memory that grows from buffer.
func (f *file) decode(part rectangle, buffer []byte) (Image, error) {
	img := Image{part.width, part.height, 3, sized(buffer, 3*part.width*part.height)}
	if err := f.codec.Decode(img.Pix, part.x, part.y, part.width, part.height); err != nil {
		return Image{}, &Error{f.path, "", err}
	}
	return img, nil
}

// render returns a view of the image.
func (f *file) render(v view) (Image, error) {
	src := v.source()
	img, err := f.decode(src, f.pixels)
	if err != nil {
		return Image{}, err
	}
	f.pixels = img.Pix
	out := f.scaler.render(img, src.x, src.y, v)
	if len(out.Pix) > 0 && &out.Pix[0] == &img.Pix[0] {
		f.pixels = nil // nothing was scaled: it is the caller's now
	}
	return out, nil
}

// free hands the memory back.
func (f *file) free() {
	held := cap(f.bytes) + cap(f.pixels) + cap(f.scaler.rows) + f.png.Held() + f.jpeg.Held()
	taken := f.taken
	f.taken = 0
	if held < largeScratch {
		files.Put(f)
	} else {
		*f = file{}
		if held >= hugeScratch {
			runtime.GC() // else as much again is taken before this is found to be free
		}
	}
	decoding.give(taken)
}

// getView is Get and the first transforms, of an image that is a file of its
// own. It returns the transforms that are left.
func (s *Set) getView(ctx context.Context, key data.Key, r *rand.Rand, transforms []Transform) (Sample, []Transform, error) {
	first, ok := transforms[0].(viewer)
	if !ok || key.Index < 0 || key.Index >= len(s.labels) {
		sample, err := s.Get(ctx, key)
		return sample, transforms, err
	}
	f := files.Get().(*file)
	defer f.free()
	if err := s.open(ctx, key.Index, f); err != nil {
		return Sample{}, nil, err
	}
	v, err := first.view(r, f.width, f.height)
	if err != nil {
		return Sample{}, nil, &Error{f.path, "", err}
	}
	transforms = transforms[1:]
	if len(transforms) > 0 {
		// The middle of what was scaled is all that has to be scaled.
		if c, ok := transforms[0].(CenterCrop); ok {
			inner, err := c.view(r, v.window.width, v.window.height)
			if err != nil {
				return Sample{}, nil, &Error{f.path, "", err}
			}
			v.window.x, v.window.y = v.window.x+inner.part.x, v.window.y+inner.part.y
			v.window.width, v.window.height = inner.width, inner.height
			transforms = transforms[1:]
		}
	}
	img, err := f.render(v)
	return Sample{img, int(s.labels[key.Index])}, transforms, err
}
