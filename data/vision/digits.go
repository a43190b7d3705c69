// SPDX-License-Identifier: Apache-2.0

package vision

import (
	"bytes"
	_ "embed"
	"fmt"
	"hash/crc32"
)

// The files are IDX as MNIST's, made by digits/convert.py; digits/README.md has
// the licence and the citation.
var (
	//go:embed digits/images-idx3-ubyte.gz
	digitImages []byte
	//go:embed digits/labels-idx1-ubyte.gz
	digitLabels []byte
)

// digitsTest is the share of the digits that is for testing: one of five of
// each class.
const digitsTest = 5

// Digits returns the 1,797 images of handwritten digits that are part of the
// program, of 8·8 grey pixels: the test set of "Optical Recognition of
// Handwritten Digits" (E. Alpaydin and C. Kaynak, UCI Machine Learning
// Repository, 1998, doi:10.24432/C50P49, CC BY 4.0). Every fifth image of each
// class is for testing. The pixels, 0 to 16 in the source, are scaled to 0 to
// 255.
func Digits() (train, test *Set, err error) {
	const name = "the digits in this program"
	pixels, err := unpackIDX(name, bytes.NewReader(digitImages), 3)
	if err != nil {
		return nil, nil, err
	}
	labels, err := unpackIDX(name, bytes.NewReader(digitLabels), 1)
	if err != nil {
		return nil, nil, err
	}
	n, h, w := pixels.dims[0], pixels.dims[1], pixels.dims[2]
	b, l := make([]byte, n*h*w), make([]byte, n)
	if _, err := pixels.ReadAt(b, pixels.size); err != nil {
		return nil, nil, fmt.Errorf("vision: %s: %w", name, err)
	}
	if _, err := labels.ReadAt(l, labels.size); err != nil {
		return nil, nil, fmt.Errorf("vision: %s: %w", name, err)
	}
	for i, v := range b {
		b[i] = byte((int(v)*255 + 8) / 16)
	}
	r := &records{path: name, r: bytes.NewReader(b), stride: int64(h * w), width: w, height: h, channels: 1}
	all := &Set{name: name, classes: numbered(10), labels: make([]uint16, n), hash: crc32.ChecksumIEEE(b), read: r.image, shape: [3]int{h, w, 1}}
	for i, v := range l {
		all.labels[i] = uint16(v)
	}
	first, second := all.stratify(digitsTest)
	return all.Subset(name, first), all.Subset(name, second), nil
}
