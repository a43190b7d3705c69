// SPDX-License-Identifier: Apache-2.0

package vision

import (
	"bufio"
	"context"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// The binary version of CIFAR-10 and CIFAR-100 (A. Krizhevsky, "Learning
// Multiple Layers of Features from Tiny Images", 2009) is records of one label
// (CIFAR-10), or a coarse and a fine label (CIFAR-100), and 3 planes of 32·32
// bytes: red, green, blue.

const (
	cifarSide   = 32
	cifarPixels = 3 * cifarSide * cifarSide
)

// cifar is a kind of it.
type cifar struct {
	name        string
	train, test []string // files
	names       string   // file of the classes' names, one a line
	classes     int
	labels      int // bytes before the pixels, of which the last is the label
}

var (
	cifar10 = cifar{
		"CIFAR-10", []string{"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin", "data_batch_5.bin"},
		[]string{"test_batch.bin"}, "batches.meta.txt", 10, 1,
	}
	cifar100 = cifar{"CIFAR-100", []string{"train.bin"}, []string{"test.bin"}, "fine_label_names.txt", 100, 2}
)

// OpenCIFAR10 opens the directory of the binary version of CIFAR-10.
func OpenCIFAR10(dir string) (train, test *Set, err error) { return cifar10.open(dir) }

// OpenCIFAR100 opens the directory of the binary version of CIFAR-100. The
// labels are the fine ones.
func OpenCIFAR100(dir string) (train, test *Set, err error) { return cifar100.open(dir) }

func (c cifar) open(dir string) (train, test *Set, err error) {
	classes, err := c.readNames(dir)
	if err != nil {
		return nil, nil, err
	}
	if train, err = c.openFiles(dir, c.train, classes); err != nil {
		return nil, nil, err
	}
	if test, err = c.openFiles(dir, c.test, classes); err != nil {
		train.Close()
		return nil, nil, err
	}
	return train, test, nil
}

// readNames returns the names of the classes, numbers where the file is
// missing.
func (c cifar) readNames(dir string) ([]string, error) {
	path := filepath.Join(dir, c.names)
	f, err := os.Open(path)
	if os.IsNotExist(err) {
		return numbered(c.classes), nil
	}
	if err != nil {
		return nil, &Error{path, "", err}
	}
	defer f.Close()
	var names []string
	lines := bufio.NewScanner(io.LimitReader(f, 1<<20))
	for lines.Scan() {
		if name := strings.TrimSpace(lines.Text()); name != "" {
			names = append(names, name)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, &Error{path, "", err}
	}
	if len(names) != c.classes {
		return nil, broken(path, "%d names for %d classes", len(names), c.classes)
	}
	return names, nil
}

func (c cifar) openFiles(dir string, files, classes []string) (set *Set, err error) {
	var open []*os.File
	closeAll := func() error {
		var first error
		for _, f := range open {
			if err := f.Close(); first == nil {
				first = err
			}
		}
		return first
	}
	defer func() {
		if err != nil {
			closeAll()
		}
	}()
	size := int64(c.labels + cifarPixels)
	var parts []*records
	set = &Set{name: c.name + " in " + dir, classes: classes, hash: crc32.ChecksumIEEE([]byte(c.name)), close: closeAll, shape: [3]int{cifarSide, cifarSide, 3}}
	starts := []int{0} // of the images of each part
	for _, name := range files {
		path := filepath.Join(dir, name)
		f, err := os.Open(path)
		if err != nil {
			return nil, &Error{path, c.name + " needs this file", err}
		}
		open = append(open, f)
		info, err := f.Stat()
		if err != nil {
			return nil, &Error{path, "", err}
		}
		if info.Size() == 0 || info.Size()%size != 0 {
			return nil, broken(path, "%d bytes are no whole number of %s's records of %d: the file is cut off or damaged", info.Size(), c.name, size)
		}
		n := int(info.Size() / size)
		for i := range n {
			var label [2]byte
			if _, err := f.ReadAt(label[:c.labels], int64(i)*size); err != nil {
				return nil, &Error{path, fmt.Sprintf("label of image %d", i), err}
			}
			l := label[c.labels-1]
			if int(l) >= c.classes {
				return nil, broken(path, "label %d of image %d is outside the %d classes", l, i, c.classes)
			}
			set.labels = append(set.labels, uint16(l))
		}
		parts = append(parts, &records{
			path: path, r: f, offset: int64(c.labels), stride: size, width: cifarSide, height: cifarSide, channels: 3, planar: true,
		})
		starts = append(starts, starts[len(starts)-1]+n)
	}
	set.read = func(ctx context.Context, i int) (Image, error) {
		p := 0
		for i >= starts[p+1] {
			p++
		}
		return parts[p].image(ctx, i-starts[p])
	}
	return set, nil
}
