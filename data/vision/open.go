// SPDX-License-Identifier: Apache-2.0

package vision

import (
	"os"
	"path/filepath"
)

// DigitsName is what Open takes for the data set of [Digits].
const DigitsName = "digits"

// Open opens a data set: "digits" is [Digits], anything else a directory, and
// what is in it says how it is read: CIFAR-10's or CIFAR-100's binary files, IDX
// files, or directories of images ([OpenFolders]). Both sets have the same
// classes, and the images of both but those from a folder are of one size.
func Open(path string) (train, test *Set, err error) {
	if path == DigitsName || path == "" {
		return Digits()
	}
	switch kind, err := kindOfSet(path); {
	case err != nil:
		return nil, nil, err
	case kind == asCIFAR10:
		return OpenCIFAR10(path)
	case kind == asCIFAR100:
		return OpenCIFAR100(path)
	case kind == asIDX:
		return OpenMNIST(path)
	}
	if l, err := list(path); err == nil && len(l.dirs) == 0 {
		what := "and no files"
		if l.files.total() > 0 {
			what = "but " + l.files.String()
		}
		return nil, nil, broken(path, "no data set in it, %s: want CIFAR's .bin files, MNIST's -ubyte files, or a directory of JPEG and PNG images for each class, as in %s", what, filepath.Join(path, "cat", "1.jpg"))
	}
	return OpenFolders(path)
}

// OpenAll opens all images of a data set, to test on: those for training and
// those for testing as [Open] does, but a directory of images may lack either,
// and a class of one may be empty. The sets need not have the same classes; see
// [Set.WithClasses].
func OpenAll(path string) ([]*Set, error) {
	if path != DigitsName && path != "" {
		kind, err := kindOfSet(path)
		if err != nil {
			return nil, err
		}
		if kind == asFolders {
			return openAllFolders(path)
		}
	}
	train, test, err := Open(path)
	if err != nil {
		return nil, err
	}
	return []*Set{train, test}, nil
}

// What a directory can hold.
const (
	asFolders = iota
	asCIFAR10
	asCIFAR100
	asIDX
)

func kindOfSet(path string) (kind int, err error) {
	entries, err := os.ReadDir(path)
	if err != nil {
		return 0, &Error{path, "want \"digits\" or a directory", err}
	}
	has := func(name string) bool {
		_, err := os.Stat(filepath.Join(path, name))
		return err == nil
	}
	switch {
	case has("data_batch_1.bin") || has("test_batch.bin"):
		return asCIFAR10, nil
	case has("train.bin") && has("test.bin"):
		return asCIFAR100, nil
	}
	for _, e := range entries {
		if !e.IsDir() && isIDX(e.Name()) {
			return asIDX, nil
		}
	}
	return asFolders, nil
}
