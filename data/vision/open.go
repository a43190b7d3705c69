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
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, nil, &Error{path, "want \"digits\" or a directory", err}
	}
	has := func(name string) bool {
		_, err := os.Stat(filepath.Join(path, name))
		return err == nil
	}
	switch {
	case has("data_batch_1.bin") || has("test_batch.bin"):
		return OpenCIFAR10(path)
	case has("train.bin") && has("test.bin"):
		return OpenCIFAR100(path)
	}
	for _, e := range entries {
		if !e.IsDir() && isIDX(e.Name()) {
			return OpenMNIST(path)
		}
	}
	if names, err := subdirectories(path); err == nil && len(names) == 0 {
		return nil, nil, broken(path, "no data set in it: want CIFAR's .bin files, MNIST's -ubyte files, or a directory of .jpg and .png files for each class")
	}
	return OpenFolders(path)
}
