// SPDX-License-Identifier: Apache-2.0

package vision

import (
	"context"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/cohort-ml/cohort/data"
)

// Set is a labelled data set. It is a [data.Dataset] of Samples.
type Set struct {
	name    string
	classes []string
	labels  []uint16 // of every image
	hash    uint32   // of what identifies the images
	read    func(ctx context.Context, i int) (Image, error)
	open    func(ctx context.Context, i int, f *file) error // where images are files of their own, else nil
	close   func() error
	notes   []string
	shape   [3]int // height, width and channels of every image; zeros where they differ
}

// Len implements [data.Dataset].
func (s *Set) Len() int { return len(s.labels) }

// Get implements [data.Dataset]. A sample does not depend on the epoch. The
// error of an image that cannot be read or decoded is an [*Error].
func (s *Set) Get(ctx context.Context, key data.Key) (Sample, error) {
	if key.Index < 0 || key.Index >= len(s.labels) {
		return Sample{}, fmt.Errorf("vision: image %d of %d in %s", key.Index, len(s.labels), s.name)
	}
	img, err := s.read(ctx, key.Index)
	return Sample{img, int(s.labels[key.Index])}, err
}

// Name says what the data is and where, for people.
func (s *Set) Name() string { return s.name }

// Notes are sentences about what a person should know of the data: files and
// directories that are left out, with their numbers. Of a set for training and
// its one for testing the first has all.
func (s *Set) Notes() []string { return s.notes }

// Classes are the names of the classes; a label is an index into them. The
// caller must not change them.
func (s *Set) Classes() []string { return s.classes }

// Label returns the class of an image without reading it.
func (s *Set) Label(i int) int { return int(s.labels[i]) }

// Shape returns the size that all images have; ok is false where each has its
// own, as in a folder.
func (s *Set) Shape() (height, width, channels int, ok bool) {
	return s.shape[0], s.shape[1], s.shape[2], s.shape[0] > 0
}

// Fingerprint tells one data set from another: a run is resumed only on the
// one that it began with. It is made of names, labels and the sizes of files, not
// of times; pixels are not read, so images that were changed and have the same
// sizes are taken for the same.
func (s *Set) Fingerprint() string {
	h := s.hash
	for _, l := range s.labels {
		h = crc32.Update(h, crc32.IEEETable, []byte{byte(l), byte(l >> 8)})
	}
	return fmt.Sprintf("images n=%d classes=%d crc=%08x", len(s.labels), len(s.classes), h)
}

// Contents returns checksums of the pixels of some images, by their numbers: two sets of other
// images have others.
func (s *Set) Contents(ctx context.Context) (map[string]string, error) {
	const some = 32
	out := map[string]string{}
	for k := range min(len(s.labels), some) {
		i := k * len(s.labels) / min(len(s.labels), some)
		img, err := s.read(ctx, i)
		if err != nil {
			// Training tells of it when it comes to the image.
			out[fmt.Sprintf("image %d", i)] = "it cannot be read"
			continue
		}
		out[fmt.Sprintf("image %d", i)] = fmt.Sprintf("%d×%d pixels, checksum %08x", img.Height, img.Width, crc32.ChecksumIEEE(img.Pix))
	}
	return out, nil
}

// Close closes the files. Nothing can be read after it.
func (s *Set) Close() error {
	if s.close == nil {
		return nil
	}
	return s.close()
}

// Subset is the set of some of the images. It reads the files of s, which must
// stay open.
func (s *Set) Subset(name string, indices []int) *Set {
	sub := &Set{name: name, classes: s.classes, labels: make([]uint16, len(indices)), hash: s.hash, shape: s.shape}
	for i, j := range indices {
		sub.labels[i] = s.labels[j]
		sub.hash = crc32.Update(sub.hash, crc32.IEEETable, []byte{byte(j), byte(j >> 8), byte(j >> 16), byte(j >> 24)})
	}
	sub.read = func(ctx context.Context, i int) (Image, error) { return s.read(ctx, indices[i]) }
	if s.open != nil {
		sub.open = func(ctx context.Context, i int, f *file) error { return s.open(ctx, indices[i], f) }
	}
	return sub
}

// WithClasses is the set with labels that are indices into other classes, which
// must have those of s, in any order. It reads the files of s, which must stay
// open.
func (s *Set) WithClasses(classes []string) (*Set, error) {
	if len(classes) > maxClasses {
		return nil, fmt.Errorf("vision: %d classes, want at most %d", len(classes), maxClasses)
	}
	at := make(map[string]uint16, len(classes))
	for i, c := range classes {
		at[c] = uint16(i)
	}
	var unknown []string
	for _, c := range s.classes {
		if _, ok := at[c]; !ok {
			unknown = append(unknown, c)
		}
	}
	if len(unknown) > 0 {
		more := ""
		if n := len(unknown); n > 5 {
			unknown, more = unknown[:5], fmt.Sprintf(" and %d others", n-5)
		}
		return nil, broken(s.name, "it has classes %q%s, which are not among the %d that are wanted: leave them out", unknown, more, len(classes))
	}
	other := *s
	other.classes, other.labels = classes, make([]uint16, len(s.labels))
	for i, l := range s.labels {
		other.labels[i] = at[s.classes[l]]
	}
	return &other, nil
}

// stratify parts a set so that test has one of every `every` images of each
// class, the last of each such group in the order of the set.
func (s *Set) stratify(every int) (train, test []int) {
	seen := make([]int, len(s.classes))
	for i, l := range s.labels {
		seen[l]++
		if seen[l]%every == 0 {
			test = append(test, i)
		} else {
			train = append(train, i)
		}
	}
	return train, test
}

// records are images of one size that lie one after the other in a file.
type records struct {
	path                    string
	r                       io.ReaderAt
	offset                  int64 // of the first image's pixels
	stride                  int64 // from one image to the next
	width, height, channels int
	planar                  bool // a channel after the other
}

// image reads one.
func (f *records) image(ctx context.Context, i int) (Image, error) {
	img := newImage(f.width, f.height, f.channels)
	t := data.Reading(ctx)
	n, err := f.r.ReadAt(img.Pix, f.offset+int64(i)*f.stride)
	t.Done()
	if n < len(img.Pix) {
		return Image{}, &Error{f.path, fmt.Sprintf("image %d", i), err}
	}
	if f.planar {
		plane := f.width * f.height
		pix := make([]byte, len(img.Pix))
		for p := range plane {
			for c := range f.channels {
				pix[p*f.channels+c] = img.Pix[c*plane+p]
			}
		}
		img.Pix = pix
	}
	return img, nil
}

// numbered are the names of classes that have none.
func numbered(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprint(i)
	}
	return names
}
