// SPDX-License-Identifier: Apache-2.0

package vision

import (
	"context"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const (
	maxClasses = 1 << 16 // labels are kept in 16 bits
	folderTest = 10      // one of so many images is for testing, where no directory says which
)

// testNames are the names of a directory of images for testing beside train.
var testNames = []string{"test", "val", "valid", "validation"}

// OpenFolder opens a directory with a directory of images for each class, as
// torchvision's ImageFolder reads it: the classes in the order of their names,
// in each the files in the order of their paths, whatever depth they are at.
// Only files whose names end in .jpg, .jpeg or .png count, and nothing that is
// hidden. The images are read when they are needed; each has three channels.
func OpenFolder(dir string) (*Set, error) {
	classes, err := subdirectories(dir)
	if err != nil {
		return nil, err
	}
	if len(classes) == 0 {
		return nil, broken(dir, "no directories in it: want one of images for each class")
	}
	return openClasses(dir, classes, true)
}

// OpenFolders opens the train and the test images of a directory: those of its
// directory train, and of the one beside it that is called test, val, valid or
// validation. If there is no train directory, dir itself holds the classes, and
// every tenth image of each class is for testing.
func OpenFolders(dir string) (train, test *Set, err error) {
	names, err := subdirectories(dir)
	if err != nil {
		return nil, nil, err
	}
	if !slices.Contains(names, "train") {
		all, err := OpenFolder(dir)
		if err != nil {
			return nil, nil, err
		}
		first, second := all.stratify(folderTest)
		if len(second) == 0 {
			return nil, nil, broken(dir, "nothing to test on: every %dth image of a class would be, and no class has %d; make directories train and test", folderTest, folderTest)
		}
		return all.Subset(dir, first), all.Subset(dir, second), nil
	}
	i := slices.IndexFunc(testNames, func(n string) bool { return slices.Contains(names, n) })
	if i < 0 {
		return nil, nil, broken(dir, "a directory train, but none to test on: want %s", strings.Join(testNames, ", "))
	}
	if train, err = OpenFolder(filepath.Join(dir, "train")); err != nil {
		return nil, nil, err
	}
	path := filepath.Join(dir, testNames[i])
	have, err := subdirectories(path)
	if err != nil {
		return nil, nil, err
	}
	for _, c := range have {
		if !slices.Contains(train.classes, c) {
			return nil, nil, broken(filepath.Join(path, c), "a class that %s does not have", filepath.Join(dir, "train"))
		}
	}
	test, err = openClasses(path, train.classes, false)
	return train, test, err
}

// openClasses lists the images of classes. With all, each must have some.
func openClasses(dir string, classes []string, all bool) (*Set, error) {
	if len(classes) > maxClasses {
		return nil, broken(dir, "%d directories, want at most %d classes", len(classes), maxClasses)
	}
	set := &Set{name: dir, classes: classes}
	var paths []string // from dir
	for label, class := range classes {
		files, err := listImages(dir, class)
		if err != nil && (all || !os.IsNotExist(err)) {
			return nil, &Error{filepath.Join(dir, class), "", err}
		}
		if all && len(files) == 0 {
			return nil, broken(filepath.Join(dir, class), "no images in it (.jpg, .jpeg or .png): the class is empty")
		}
		for _, path := range files {
			size := int64(0) // of a link to nowhere: who reads it is told
			if info, err := os.Stat(filepath.Join(dir, path)); err == nil {
				size = info.Size()
			}
			paths = append(paths, path)
			set.labels = append(set.labels, uint16(label))
			set.hash = crc32.Update(set.hash, crc32.IEEETable, fmt.Appendf(nil, "%s\n%d\n", filepath.ToSlash(path), size))
		}
	}
	if len(paths) == 0 {
		return nil, broken(dir, "no images in it (.jpg, .jpeg or .png)")
	}
	set.open = func(ctx context.Context, i int, f *file) error { return f.open(ctx, filepath.Join(dir, paths[i])) }
	set.read = func(ctx context.Context, i int) (Image, error) {
		f := files.Get().(*file)
		defer f.free()
		if err := set.open(ctx, i, f); err != nil {
			return Image{}, err
		}
		return f.decode(rectangle{0, 0, f.width, f.height}, nil)
	}
	return set, nil
}

// subdirectories returns the names of the directories in dir that are not
// hidden, in order.
func subdirectories(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, &Error{dir, "", err}
	}
	var names []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		// A link to a directory is one.
		if info, err := os.Stat(filepath.Join(dir, e.Name())); err == nil && info.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// listImages returns the paths of a class's images from dir, in order.
func listImages(dir, class string) ([]string, error) {
	// WalkDir does not follow a link, unless it begins there.
	root, err := filepath.EvalSymlinks(filepath.Join(dir, class))
	if err != nil {
		return nil, err
	}
	var files []string
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if path != root && strings.HasPrefix(d.Name(), ".") {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if d.IsDir() || !isImage(d.Name()) {
			return nil
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		files = append(files, filepath.Join(class, rel))
		return nil
	})
	slices.Sort(files)
	return files, err
}

func isImage(name string) bool {
	switch strings.ToLower(filepath.Ext(name)) {
	case ".jpg", ".jpeg", ".png":
		return true
	}
	return false
}
