// SPDX-License-Identifier: Apache-2.0

package vision

import (
	"bytes"
	"context"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"github.com/cohort-ml/cohort/internal/png"
)

const (
	maxClasses = 1 << 16 // labels are kept in 16 bits
	folderTest = 10      // one of so many images is for testing, where no directory says which
)

// trainNames and testNames are the names, in any letter case, of a directory of
// images to train on, and of those for testing beside it; the first that is there
// counts. See [listing.find] for longer names.
var (
	trainNames = []string{"train", "training"}
	testNames  = []string{"test", "testing", "val", "valid", "validation"}
)

// junk are names, in small letters, of what systems and programs leave in
// directories of images beside what is hidden.
var junk = []string{"__macosx", "@eadir", "$recycle.bin", "system volume information", "lost+found", "__pycache__", "thumbs.db", "ehthumbs.db", "desktop.ini"}

func isJunk(name string) bool {
	return strings.HasPrefix(name, ".") || slices.Contains(junk, strings.ToLower(name))
}

// OpenFolder opens a directory with a directory of images for each class, as
// torchvision's ImageFolder reads it: the classes in the order of their names,
// in each the files in the order of their paths, whatever depth they are at.
// JPEG and PNG files count: those whose names end in .jpg, .jpeg or .png, and
// those of other names that begin as such files do; nothing that is hidden or
// left by the system. [Set.Notes] says what is left out. The images are read when
// they are needed; each has three channels.
func OpenFolder(dir string) (*Set, error) {
	l, err := list(dir)
	if err != nil {
		return nil, err
	}
	if len(l.dirs) == 0 {
		return nil, l.noClasses()
	}
	set, err := openClasses(dir, l.dirs, true)
	if err == nil {
		set.notes = append(l.beside(), set.notes...)
	}
	return set, err
}

// OpenFolders opens the train and the test images of a directory: those of its
// directory train (or training), and of the one beside it that is called test,
// testing, val, valid or validation, in any letter case; training_set and test_set
// do as well where nothing else is there. If there is no train
// directory, dir itself holds the classes, and every tenth image of each class is
// for testing.
func OpenFolders(dir string) (train, test *Set, err error) {
	l, err := list(dir)
	if err != nil {
		return nil, nil, err
	}
	trainName, err := l.find(trainNames)
	if err != nil {
		return nil, nil, err
	}
	testName, err := l.find(testNames)
	if err != nil {
		return nil, nil, err
	}
	if trainName == "" {
		if len(l.dirs) == 1 { // as archives are unpacked
			inner, err := list(filepath.Join(dir, l.dirs[0]))
			if err != nil {
				return nil, nil, err
			}
			if name, err := inner.find(trainNames); err == nil && name != "" {
				return nil, nil, broken(dir, "one directory, in which there is %s: name %s", name, inner.dir)
			}
		}
		all, err := OpenFolder(dir)
		if err != nil {
			return nil, nil, err
		}
		first, second := all.stratify(folderTest)
		if len(second) == 0 {
			return nil, nil, broken(dir, "nothing to test on: every %dth image of a class would be, and no class has %d; make directories train and test", folderTest, folderTest)
		}
		train, test = all.Subset(dir, first), all.Subset(dir, second)
		if train.notes = all.notes; testName != "" {
			train.notes = append(train.notes, fmt.Sprintf("%s: the directory %s is taken for a class, for there is none called train beside it", dir, testName))
		}
		return train, test, nil
	}
	if testName == "" {
		return nil, nil, broken(dir, "a directory %s, but none to test on: want %s", trainName, strings.Join(testNames, ", "))
	}
	if train, err = OpenFolder(filepath.Join(dir, trainName)); err != nil {
		return nil, nil, err
	}
	path := filepath.Join(dir, testName)
	have, err := list(path)
	if err != nil {
		return nil, nil, err
	}
	for _, c := range have.dirs {
		if !slices.Contains(train.classes, c) {
			return nil, nil, broken(filepath.Join(path, c), "a class that %s does not have", filepath.Join(dir, trainName))
		}
	}
	if test, err = openClasses(path, train.classes, false); err != nil {
		return nil, nil, err
	}
	train.notes = append(train.notes, append(have.beside(), test.notes...)...)
	test.notes = nil
	l.dirs = slices.DeleteFunc(l.dirs, func(name string) bool { return name == trainName || name == testName })
	if len(l.dirs) > 0 {
		train.notes = append(train.notes, fmt.Sprintf("%s: %s and %s are read, other directories are not: %q", dir, trainName, testName, l.dirs))
	}
	train.notes = append(l.beside(), train.notes...)
	return train, test, nil
}

// openAllFolders opens directories of images for training and testing, or of
// classes.
func openAllFolders(dir string) ([]*Set, error) {
	l, err := list(dir)
	if err != nil {
		return nil, err
	}
	if len(l.dirs) == 0 {
		return nil, l.noClasses()
	}
	parts := []string{""}
	if l.allParts() {
		parts = l.dirs
	}
	var sets []*Set
	for _, part := range parts {
		path := filepath.Join(dir, part)
		inside, err := list(path)
		if err != nil {
			return nil, err
		}
		if len(inside.dirs) == 0 {
			return nil, inside.noClasses()
		}
		set, err := openClasses(path, inside.dirs, false)
		if err != nil {
			return nil, err
		}
		set.notes = append(inside.beside(), set.notes...)
		sets = append(sets, set)
	}
	return sets, nil
}

// listing is what lies right in a directory.
type listing struct {
	dir   string
	dirs  []string // names, in order
	files tally
}

// list lists a directory without what is hidden or junk.
func list(dir string) (l listing, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return l, &Error{dir, "", err}
	}
	l.dir = dir
	for _, e := range entries {
		if isJunk(e.Name()) {
			continue
		}
		// A link to a directory is one.
		if info, err := os.Stat(filepath.Join(dir, e.Name())); err == nil && info.IsDir() {
			l.dirs = append(l.dirs, e.Name())
		} else {
			l.files.add(e.Name())
		}
	}
	return l, nil
}

// find returns the directory that has the first of the names that one has, "" if
// none has. Where each directory has one of all the names among its words, as in
// training_set and test_set, a word is enough. Two that differ in letter case alone
// are an error.
func (l listing) find(names []string) (found string, err error) {
	found, err = l.match(names, strings.EqualFold)
	if found == "" && err == nil && l.allParts() {
		found, err = l.match(names, func(dir, name string) bool { return hasWord(dir, []string{name}) })
	}
	return found, err
}

func (l listing) match(names []string, is func(dir, name string) bool) (found string, err error) {
	for _, name := range names {
		for _, dir := range l.dirs {
			if !is(dir, name) {
				continue
			}
			if found != "" {
				return "", broken(l.dir, "directories %s and %s: which is meant?", found, dir)
			}
			found = dir
		}
		if found != "" {
			return found, nil
		}
	}
	return "", nil
}

// allParts says whether each directory has a name for training or testing among
// its words.
func (l listing) allParts() bool {
	for _, name := range l.dirs {
		if !hasWord(name, trainNames) && !hasWord(name, testNames) {
			return false
		}
	}
	return true
}

// hasWord says whether a word of a directory's name is one of the names.
func hasWord(dir string, names []string) bool {
	words := strings.FieldsFunc(strings.ToLower(dir), func(r rune) bool { return !unicode.IsLetter(r) })
	return slices.ContainsFunc(words, func(word string) bool {
		return slices.Contains(names, word) || slices.Contains(names, strings.TrimSuffix(word, "set"))
	})
}

// noClasses is the error of a directory in which there are none.
func (l listing) noClasses() error {
	if l.files.total() == 0 {
		return broken(l.dir, "no directories in it: want one of images for each class")
	}
	return broken(l.dir, "no directories in it, but %v: want a directory of images for each class, as in %s", l.files, filepath.Join(l.dir, "cat", "1.jpg"))
}

// beside notes the files that lie beside the directories.
func (l listing) beside() []string {
	if l.files.total() == 0 {
		return nil
	}
	return []string{fmt.Sprintf("%s: left out beside the directories: %v", l.dir, l.files)}
}

// tally counts files by the ends of their names.
type tally map[string]int

func (t *tally) add(name string) {
	if *t == nil {
		*t = tally{}
	}
	end := strings.ToLower(filepath.Ext(name))
	if end == "" || end == strings.ToLower(name) || len(end) > 12 {
		end = "of other names"
	}
	(*t)[end]++
}

func (t tally) total() (n int) {
	for _, k := range t {
		n += k
	}
	return n
}

// String is such as "3 files (2 .webp, 1 .gif)".
func (t tally) String() string {
	ends := slices.SortedFunc(maps.Keys(t), func(a, b string) int {
		if t[a] != t[b] {
			return t[b] - t[a]
		}
		return strings.Compare(a, b)
	})
	var parts []string
	other := 0
	for i, end := range ends {
		if i < 8 {
			parts = append(parts, fmt.Sprintf("%d %s", t[end], end))
		} else {
			other += t[end]
		}
	}
	if other > 0 {
		parts = append(parts, fmt.Sprintf("%d others", other))
	}
	files := "files"
	if t.total() == 1 {
		files = "file"
	}
	return fmt.Sprintf("%d %s (%s)", t.total(), files, strings.Join(parts, ", "))
}

// openClasses lists the images of classes. With all, each must have some.
func openClasses(dir string, classes []string, all bool) (*Set, error) {
	if len(classes) > maxClasses {
		return nil, broken(dir, "%d directories, want at most %d classes", len(classes), maxClasses)
	}
	set := &Set{name: dir, classes: classes}
	var paths []string // from dir
	var left tally
	for label, class := range classes {
		before := left.total()
		files, err := listImages(dir, class, &left)
		if err != nil && (all || !os.IsNotExist(err)) {
			return nil, &Error{filepath.Join(dir, class), "", err}
		}
		if all && len(files) == 0 {
			also := ""
			if n := left.total() - before; n > 0 {
				also = fmt.Sprintf(", but %d other files", n)
			}
			return nil, broken(filepath.Join(dir, class), "no images in it (JPEG or PNG)%s: the class is empty", also)
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
		return nil, broken(dir, "no images in it (JPEG or PNG)")
	}
	if left.total() > 0 {
		set.notes = append(set.notes, fmt.Sprintf("%s: left out, neither JPEG nor PNG: %v", dir, left))
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

// listImages returns the paths of a class's images from dir, in order, and counts
// what else there is.
func listImages(dir, class string, left *tally) ([]string, error) {
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
		if path != root && isJunk(d.Name()) {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if d.IsDir() {
			return nil
		}
		if !isImage(path) {
			left.add(d.Name())
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

// isImage says whether a file is taken for an image: by its name, or if that
// says something else, by how it begins.
func isImage(path string) bool {
	switch strings.ToLower(filepath.Ext(path)) {
	case ".jpg", ".jpeg", ".png":
		return true
	}
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() { // opening a pipe would wait
		return false
	}
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	var b [8]byte
	n, _ := io.ReadFull(f, b[:])
	return begins(b[:n], "\xff\xd8\xff") || begins(b[:n], png.Magic)
}

func begins(b []byte, with string) bool { return strings.HasPrefix(string(b), with) }

// kindOf names what a file is that is neither JPEG nor PNG, as far as its first
// bytes tell.
func kindOf(b []byte) string {
	switch {
	case begins(b, "GIF8"):
		return "a GIF"
	case begins(b, "RIFF") && len(b) >= 12 && string(b[8:12]) == "WEBP":
		return "a WebP"
	case begins(b, "BM"):
		return "a BMP"
	case begins(b, "II*\x00") || begins(b, "MM\x00*"):
		return "a TIFF"
	case len(b) >= 12 && string(b[4:8]) == "ftyp":
		return fmt.Sprintf("a file of kind %q, as HEIC and AVIF are,", b[8:12])
	case begins(b, "\xff\x0a") || begins(b, "\x00\x00\x00\x0cJXL "):
		return "a JPEG XL"
	case begins(b, "\x00\x00\x00\x0cjP  "):
		return "a JPEG 2000"
	case begins(b, "8BPS"):
		return "a Photoshop file"
	case begins(b, "version https://git-lfs"):
		return "a pointer of Git LFS, whose file was not fetched,"
	case begins(bytes.TrimLeft(b, " \t\r\n\xef\xbb\xbf"), "<"):
		return "a text of HTML or XML"
	}
	return fmt.Sprintf("a file that begins with % x", b[:min(len(b), 8)])
}
