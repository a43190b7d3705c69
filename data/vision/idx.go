// SPDX-License-Identifier: Apache-2.0

package vision

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// IDX is the format of MNIST (Y. LeCun, C. Cortes, C. Burges): two zero bytes,
// the type of the elements, the number of dims, each dim in 4 bytes with the
// highest first, and the elements. Images are bytes [n, height, width].

const (
	idxBytes   = 8       // the type of unsigned bytes
	maxIDXSide = 1 << 14 // pixels: a longer side is a damaged header
	maxIDX     = 1 << 40 // bytes of a file
)

// idxHeader is what a file begins with.
type idxHeader struct {
	dims []int
	size int64 // of the header
}

func (h idxHeader) elements() int64 {
	n := int64(1)
	for _, d := range h.dims {
		n *= int64(d)
	}
	return n
}

// readIDXHeader reads and checks the header of a file of bytes with the wanted
// number of dims.
func readIDXHeader(path string, r io.Reader, numDims int) (idxHeader, error) {
	short := func(err error) error {
		return &Error{path, "not an IDX file: it ends within the header", err}
	}
	var magic [4]byte
	if _, err := io.ReadFull(r, magic[:]); err != nil {
		return idxHeader{}, short(err)
	}
	switch {
	case magic[0] != 0 || magic[1] != 0:
		return idxHeader{}, broken(path, "not an IDX file: it begins with % x, want 00 00", magic[:2])
	case magic[2] != idxBytes:
		return idxHeader{}, broken(path, "IDX elements of type %#02x, want unsigned bytes (0x08)", magic[2])
	case int(magic[3]) != numDims:
		what := "images"
		if numDims == 1 {
			what = "labels"
		}
		return idxHeader{}, broken(path, "an IDX file of %d dims, want %d for %s", magic[3], numDims, what)
	}
	h := idxHeader{dims: make([]int, numDims), size: 4 + 4*int64(numDims)}
	for i := range h.dims {
		var b [4]byte
		if _, err := io.ReadFull(r, b[:]); err != nil {
			return idxHeader{}, short(err)
		}
		d := binary.BigEndian.Uint32(b[:])
		if d == 0 || i > 0 && d > maxIDXSide {
			return idxHeader{}, broken(path, "dim %d of the IDX file is %d: it is empty or its header is damaged", i, d)
		}
		h.dims[i] = int(d)
	}
	if h.elements() > maxIDX {
		return idxHeader{}, broken(path, "an IDX file of %v elements: its header is damaged", h.dims)
	}
	return h, nil
}

// idxFile is an open file, packed or not, whose length fits its header.
type idxFile struct {
	idxHeader
	io.ReaderAt
	close func() error
}

// openIDX opens a file. A packed one is unpacked into memory.
func openIDX(path string, numDims int) (*idxFile, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, &Error{path, "", err}
	}
	var head [2]byte
	if _, err := f.ReadAt(head[:], 0); err == nil && head == [2]byte{0x1f, 0x8b} {
		defer f.Close()
		return unpackIDX(path, f, numDims)
	}
	h, err := readIDXHeader(path, f, numDims)
	if err != nil {
		f.Close()
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && info.Size() != h.size+h.elements() {
		err = broken(path, "%d bytes, but its header says %v, which makes %d: the file is cut off or damaged", info.Size(), h.dims, h.size+h.elements())
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return &idxFile{h, f, f.Close}, nil
}

func unpackIDX(path string, r io.Reader, numDims int) (*idxFile, error) {
	z, err := gzip.NewReader(r)
	if err != nil {
		return nil, &Error{path, "", err}
	}
	var all bytes.Buffer
	h, err := readIDXHeader(path, io.TeeReader(z, &all), numDims)
	if err != nil {
		return nil, err
	}
	// Memory grows with what is there, not with what the header claims.
	n, err := io.Copy(&all, io.LimitReader(z, h.elements()+1))
	if err == nil && n < h.elements() {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, &Error{path, fmt.Sprintf("%d of the %d bytes that its header %v promises could be unpacked", n, h.elements(), h.dims), err}
	}
	if n > h.elements() {
		return nil, broken(path, "more bytes than the %d that its header %v promises", h.elements(), h.dims)
	}
	return &idxFile{h, bytes.NewReader(all.Bytes()), func() error { return nil }}, nil
}

// OpenIDX opens a file of images and the file of their labels, either may be
// packed by gzip. The classes are numbered up to the highest label.
func OpenIDX(images, labels string) (*Set, error) {
	pixels, err := openIDX(images, 3)
	if err != nil {
		return nil, err
	}
	set, err := newIDX(images, pixels, labels)
	if err != nil {
		pixels.close()
	}
	return set, err
}

func newIDX(images string, pixels *idxFile, labels string) (*Set, error) {
	f, err := openIDX(labels, 1)
	if err != nil {
		return nil, err
	}
	defer f.close()
	if f.dims[0] != pixels.dims[0] {
		return nil, broken(labels, "%d labels for the %d images of %s", f.dims[0], pixels.dims[0], images)
	}
	b := make([]byte, f.dims[0])
	if _, err := f.ReadAt(b, f.size); err != nil && !errors.Is(err, io.EOF) {
		return nil, &Error{labels, "", err}
	}
	h, w := pixels.dims[1], pixels.dims[2]
	r := &records{path: images, r: pixels, offset: pixels.size, stride: int64(h * w), width: w, height: h, channels: 1}
	set := &Set{
		name: images, classes: numbered(int(slices.Max(b)) + 1), labels: make([]uint16, len(b)),
		hash: crc32.ChecksumIEEE(fmt.Appendf(nil, "idx %v", pixels.dims)), read: r.image, close: pixels.close, shape: [3]int{h, w, 1},
	}
	for i, l := range b {
		set.labels[i] = uint16(l)
	}
	return set, nil
}

// OpenMNIST opens the four files of a directory that are named as MNIST's and
// its relatives' are: train-images-idx3-ubyte, train-labels-idx1-ubyte and the
// same with t10k or test, packed (.gz) or not.
func OpenMNIST(dir string) (train, test *Set, err error) {
	var files [4]string
	parts := []string{"train", "images", "train", "labels", "test", "images", "test", "labels"}
	for i := range files {
		if files[i], err = findIDX(dir, parts[2*i], parts[2*i+1]); err != nil {
			return nil, nil, err
		}
	}
	if train, err = OpenIDX(files[0], files[1]); err != nil {
		return nil, nil, err
	}
	if test, err = OpenIDX(files[2], files[3]); err != nil {
		train.Close()
		return nil, nil, err
	}
	if err = sameClasses(train, test, files[3]); err != nil {
		train.Close()
		test.Close()
		return nil, nil, err
	}
	return train, test, nil
}

// sameClasses holds the labels of a test set to the classes of its train set.
func sameClasses(train, test *Set, path string) error {
	for i, l := range test.labels {
		if int(l) >= len(train.classes) {
			return broken(path, "label %d of image %d is outside the %d classes that are trained", l, i, len(train.classes))
		}
	}
	test.classes = train.classes
	return nil
}

func isIDX(name string) bool {
	return strings.Contains(name, "-ubyte") || strings.Contains(name, ".idx")
}

func findIDX(dir, split, what string) (string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", &Error{dir, "", err}
	}
	var found []string
	for _, e := range entries {
		name := strings.ToLower(e.Name())
		isSplit := strings.Contains(name, split) || split == "test" && strings.Contains(name, "t10k")
		if e.Type() != fs.ModeDir && isIDX(name) && isSplit && strings.Contains(name, what) {
			found = append(found, e.Name())
		}
	}
	switch len(found) {
	case 0:
		return "", broken(dir, "no IDX file of the %s %s: want a name such as train-images-idx3-ubyte.gz or t10k-labels-idx1-ubyte", split, what)
	case 1:
		return filepath.Join(dir, found[0]), nil
	}
	// The same file twice, packed and unpacked, is what unpacking by hand leaves.
	slices.Sort(found)
	if len(found) == 2 && found[1] == found[0]+".gz" {
		return filepath.Join(dir, found[0]), nil
	}
	return "", broken(dir, "%d IDX files could be the %s %s (%s): keep one data set a directory", len(found), split, what, strings.Join(found, ", "))
}
