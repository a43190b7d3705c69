// SPDX-License-Identifier: Apache-2.0

package records

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
)

// maxFiles bounds the files of a set.
const maxFiles = 1 << 16

// Options say how a set is opened. The zero value is usable.
type Options struct {
	// Fields are those that records have; nil is all. A Parquet file is not read for others.
	Fields []string
	// Cache is the directory for indexes and copies; "" is that of COHORT_CACHE, or else one in the
	// user's cache.
	Cache string
	// Notice is told what takes long, and which files of a directory are left out; may be nil.
	Notice func(text string)
}

// Set is a number of records, read when they are asked for. It is safe for concurrent use.
type Set struct {
	name    string
	sources []source
	starts  []int // of the sources, and the end
	cache   *cache
}

// source is a file of records.
type source interface {
	path() string
	num() int
	read(i int, want func(string) Want) (Record, error) // an error has no place yet
	line(i int) int                                     // of a record, from 1; 0 where there are none
	digest() string                                     // of all of the file
	close() error
}

// Open opens the records of a file, of all files of a directory and below it, or of those that a glob
// names. The files of a set have one format. It reads each file once, unless the cache knows it.
func Open(ctx context.Context, path string, o Options) (*Set, error) {
	files, err := list(path, o.Notice)
	if err != nil {
		return nil, err
	}
	c, err := openCache(o.Cache, o.Notice)
	if err != nil {
		return nil, err
	}
	s := &Set{name: path, starts: []int{0}, cache: c}
	for _, f := range files {
		src, err := f.open(ctx, o, c)
		if err != nil {
			s.Close()
			return nil, err
		}
		s.sources = append(s.sources, src)
		s.starts = append(s.starts, s.Len()+src.num())
	}
	if s.Len() == 0 {
		s.Close()
		return nil, &Error{Path: path, Detail: "has no records: it is empty"}
	}
	return s, nil
}

// Len is the number of records.
func (s *Set) Len() int { return s.starts[len(s.starts)-1] }

// Name is the path that the set was opened with.
func (s *Set) Name() string { return s.name }

// NumFiles is the number of files.
func (s *Set) NumFiles() int { return len(s.sources) }

// Fingerprint identifies the bytes of the files and their order: with another fingerprint the same
// numbers mean other records. Where the files lie does not matter.
func (s *Set) Fingerprint() string {
	h := crc32.New(castagnoli)
	for _, src := range s.sources {
		fmt.Fprintf(h, "%s %s\n", filepath.Base(src.path()), src.digest())
	}
	return fmt.Sprintf("records=%d files=%d crc=%08x", s.Len(), len(s.sources), h.Sum32())
}

// mostNamed is how many files [Set.Contents] names.
const mostNamed = 256

// Contents returns what the files hold, size and checksum of all of each, by their names. Of many
// files the last ones are put together.
func (s *Set) Contents(context.Context) (map[string]string, error) {
	out := map[string]string{}
	rest := crc32.New(castagnoli)
	for i, src := range s.sources {
		name := filepath.Base(src.path())
		if _, ok := out[name]; ok { // in another directory
			name = fmt.Sprintf("%d %s", i, name)
		}
		if i < mostNamed {
			out[name] = src.digest()
			continue
		}
		fmt.Fprintf(rest, "%s %s\n", name, src.digest())
		out["more files"] = fmt.Sprintf("%d with the checksum %08x", i+1-mostNamed, rest.Sum32())
	}
	return out, nil
}

// Read returns record i. What is wrong with it is an *[Error].
func (s *Set) Read(i int) (Record, error) { return s.ReadFields(i, nil) }

// ReadFields returns record i with what want says of its fields; nil takes all.
func (s *Set) ReadFields(i int, want func(field string) Want) (Record, error) {
	if i < 0 || i >= s.Len() {
		return nil, fmt.Errorf("records: record %d of %s, which has %d", i, s.name, s.Len())
	}
	n := sort.SearchInts(s.starts, i+1) - 1
	r, err := s.sources[n].read(i-s.starts[n], want)
	if err != nil {
		return nil, s.At(i, err)
	}
	return r, nil
}

// At says of an error of what record i has, such as a [FieldError], in which file and line it is.
func (s *Set) At(i int, err error) error {
	if known := (*Error)(nil); err == nil || errors.As(err, &known) {
		return err
	}
	n := sort.SearchInts(s.starts, i+1) - 1
	src, i := s.sources[n], i-s.starts[n]
	return at(src.path(), src.line(i), i+1, err)
}

// at says of an error of what a record has where it is.
func at(path string, line, record int, err error) error {
	if known := (*Error)(nil); err == nil || errors.As(err, &known) {
		return err
	}
	e := &Error{Path: path, Line: line, Record: record, Detail: err.Error()}
	if f := (*FieldError)(nil); errors.As(err, &f) {
		e.Field, e.Detail = f.Field, f.Detail
	}
	return e
}

// Close closes the files.
func (s *Set) Close() error {
	var err error
	for _, src := range s.sources {
		err = errors.Join(err, src.close())
	}
	return err
}

// format is a kind of file.
type format struct {
	name    string
	endings []string
	open    func(ctx context.Context, path string, o Options, c *cache) (source, error)
}

func formats() []format {
	return []format{
		{"JSON lines", []string{".jsonl", ".ndjson"}, openLines},
		{"a list of JSON objects", []string{".json"}, openJSON},
		{"compressed JSON lines", []string{".jsonl.gz", ".ndjson.gz", ".json.gz", ".jsonl.zst", ".ndjson.zst", ".json.zst"}, openPacked},
		{"Parquet", []string{".parquet"}, openParquet},
		{"WebDataset", []string{".tar"}, openTar},
		{"compressed WebDataset", []string{".tar.gz", ".tgz", ".tar.zst"}, openPackedTar},
	}
}

// formatOf finds the format of a file by its name.
func formatOf(name string) (format, bool) {
	name = strings.ToLower(name)
	for _, f := range formats() {
		for _, e := range f.endings {
			if strings.HasSuffix(name, e) && len(name) > len(e) {
				return f, true
			}
		}
	}
	return format{}, false
}

// Endings are the endings of the names of files that [Open] reads.
func Endings() (all []string) {
	for _, f := range formats() {
		all = append(all, f.endings...)
	}
	return all
}

// Is reports whether a path names records: a file by its ending, a glob, or a directory of such files,
// in which other files only describe them.
func Is(path string) bool {
	if isGlob(path) {
		return true
	}
	info, err := os.Stat(path)
	if err != nil || !info.IsDir() {
		_, ok := formatOf(path)
		return ok && path != ""
	}
	found, other := false, false
	err = filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
		switch _, ok := formatOf(d.Name()); {
		case err != nil:
			return err
		case p != path && strings.HasPrefix(d.Name(), "."):
			if d.IsDir() {
				return filepath.SkipDir
			}
		case d.IsDir():
		case ok && !isDescription(d.Name()):
			found = true
		case !isDescription(d.Name()):
			other = true
			return filepath.SkipAll
		}
		return nil
	})
	return err == nil && found && !other
}

// isDescription reports whether a file of a directory of records says something about them.
func isDescription(name string) bool {
	name = strings.ToLower(name)
	for _, begin := range []string{"readme", "license", "licence", "citation", "notice", "changelog", "dataset_info", "datasets_info", "dataset_dict", "state.json"} {
		if strings.HasPrefix(name, begin) {
			return true
		}
	}
	switch filepath.Ext(name) {
	case ".md", ".py", ".sha256", ".crc", ".yaml", ".yml":
		return true
	}
	return false
}

func isGlob(path string) bool {
	if !strings.ContainsAny(path, "*?[") {
		return false
	}
	_, err := os.Lstat(path) // a file may be called so
	return err != nil
}

// file is a file of a set, and its format.
type file struct {
	path string
	format
}

func (f file) open(ctx context.Context, o Options, c *cache) (source, error) {
	return f.format.open(ctx, f.path, o, c)
}

// list finds the files that a path names, in the order of their names.
func list(path string, notice func(string)) ([]file, error) {
	bad := func(format string, args ...any) ([]file, error) {
		return nil, &Error{Path: path, Detail: fmt.Sprintf(format, args...)}
	}
	known := strings.Join(Endings(), ", ")
	var paths []string
	switch info, err := os.Stat(path); {
	case isGlob(path):
		if paths, err = filepath.Glob(path); err != nil {
			return bad("is no pattern of files: %v", err)
		}
		if paths = slices.DeleteFunc(paths, isDirectory); len(paths) == 0 {
			return bad("no file has such a name")
		}
	case err != nil:
		return nil, unreadable(path, err)
	case info.IsDir():
		var left int
		var first string
		err := filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
			switch _, ok := formatOf(p); {
			case err != nil:
				return unreadable(p, err)
			case p != path && strings.HasPrefix(d.Name(), "."):
				if d.IsDir() {
					return filepath.SkipDir
				}
			case d.IsDir() || isDescription(d.Name()):
			case ok:
				paths = append(paths, p)
			default:
				if left++; left == 1 {
					first = p
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		if len(paths) == 0 {
			return bad("no file below it is of records (%s)", known)
		}
		if left > 0 && notice != nil {
			notice(fmt.Sprintf("files in %s that are no records are left out: %d, the first is %s", path, left, first))
		}
	default:
		paths = []string{path}
	}
	if len(paths) > maxFiles {
		return bad("%d files, at most %d are read", len(paths), maxFiles)
	}
	files := make([]file, len(paths))
	for i, p := range paths {
		f, ok := formatOf(p)
		if !ok {
			return nil, &Error{Path: p, Detail: "is of no known format: its name must end with one of " + known}
		}
		if files[i] = (file{p, f}); f.name != files[0].name {
			return bad("%s is %s, %s is %s: name the files of one of them, such as by %s", paths[0], files[0].name, p, f.name, filepath.Join("DIR", "*"+f.endings[0]))
		}
	}
	return files, nil
}

func isDirectory(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}
