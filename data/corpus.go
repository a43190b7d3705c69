// SPDX-License-Identifier: Apache-2.0

package data

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"unicode/utf8"
)

const (
	minCorpus    = 16 << 10 // bytes: less cannot be split into anything useful
	headSize     = 4 << 10  // of a file, read to see what it is
	valShare     = 20       // a 20th of the text is for validation
	minValUnits  = 4        // directories or files that validation must come from
	lineSearch   = 4 << 10  // bytes in which a block's end looks for a line's end
	fewestBlocks = 400      // of a text split by blocks, unless they get too small
)

// Corpus is a body of text parted for training and validation.
//
// A 20th of the text is for validation: whole directories, chosen by a hash of
// their names. Where there are too few directories, files are chosen, and
// where there are too few files, blocks of lines evenly spaced over the text.
// The split is a function of the names and sizes alone. Validation files come
// in the order of a hash, so that any beginning of the validation text is a
// fair sample.
type Corpus struct {
	Name       string // what it is and where, for people
	Train      *Text
	Validation *Text
	Skipped    int // files left out: not text, generated, or not regular files

	from         string // the directory, if a user named one
	firstSkipped string
}

// Note says which files were left out of a directory that a user named, "" if
// none.
func (c *Corpus) Note() string {
	switch {
	case c.Skipped == 0 || c.from == "":
		return ""
	case c.Skipped == 1:
		return fmt.Sprintf("a file in %s is left out (not UTF-8 text, generated, or a link): %s", c.from, c.firstSkipped)
	}
	return fmt.Sprintf("%d files in %s are left out (not UTF-8 text, generated, or links), the first is %s", c.Skipped, c.from, c.firstSkipped)
}

// ByteSize is a number of bytes that prints as megabytes, or as kilobytes if it
// is less than one.
type ByteSize int64

func (n ByteSize) String() string {
	if n < 1e6 {
		return fmt.Sprintf("%.1f kB", float64(n)/1e3)
	}
	return fmt.Sprintf("%.1f MB", float64(n)/1e6)
}

// OpenCorpus finds the text of a file or of a directory and everything below
// it, except what is hidden. With path "" it is the Go standard library's
// source ([OpenStandardLibrary]), or where there is none a small text that is
// part of this program. Files are listed and their beginnings looked at; the
// rest is read when it is needed. Problems are *[SourceError]s.
func OpenCorpus(ctx context.Context, path string) (*Corpus, error) {
	if path == "" {
		c, err := OpenStandardLibrary(ctx)
		if err == nil || ctx.Err() != nil {
			return c, err
		}
		return embeddedCorpus()
	}
	root, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, missing(path, err)
	}
	info, err := os.Stat(root)
	if err != nil {
		return nil, missing(path, err)
	}
	var files []*file
	c := &Corpus{Name: path}
	switch {
	case info.Mode().IsRegular():
		files = []*file{{name: filepath.Base(path), path: root, size: info.Size()}}
		if info.Size() == 0 {
			return nil, &SourceError{Path: path, Problem: Empty, Advice: "--data wants a file or directory of UTF-8 text"}
		}
		if files, _, err = selectFiles(ctx, files, isText); err != nil {
			return nil, err
		}
		if len(files) == 0 {
			return nil, &SourceError{Path: path, Problem: NotText, Detail: "its beginning is not valid UTF-8 or holds a zero byte", Advice: "convert it, or point --data at a file or directory of UTF-8 text"}
		}
	case info.IsDir():
		if err := unended(path); err != nil {
			return nil, err
		}
		hidden := func(_ string, d fs.DirEntry) bool { return strings.HasPrefix(d.Name(), ".") }
		found, odd, err := listFiles(ctx, root, hidden)
		if err != nil {
			return nil, err
		}
		var skipped []string
		if files, skipped, err = selectFiles(ctx, found, func(f *file, head []byte) bool {
			return isText(f, head) && !(strings.HasSuffix(f.name, ".go") && isGenerated(head))
		}); err != nil {
			return nil, err
		}
		c.skip(path, append(skipped, odd...))
		if len(files) == 0 {
			return nil, &SourceError{Path: path, Problem: Empty, Detail: fmt.Sprintf("no text in it, %d files skipped", c.Skipped), Advice: "--data wants a file or directory of UTF-8 text"}
		}
	default:
		return nil, &SourceError{Path: path, Problem: NotText, Detail: "it is neither a file nor a directory", Advice: "--data wants a file or directory of UTF-8 text"}
	}
	return c, c.part(path, files)
}

// skip notes the names of files that are left out.
func (c *Corpus) skip(from string, names []string) {
	if c.Skipped = len(names); c.Skipped > 0 {
		c.from, c.firstSkipped = from, slices.Min(names)
	}
}

func missing(path string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return &SourceError{Path: path, Problem: Missing, Advice: "check the path given with --data"}
	}
	return unreadable(path, err)
}

// listFiles lists the regular files below root in the order of their paths,
// and names what is neither a file nor a directory. Empty files are left out
// later, when their size is known.
func listFiles(ctx context.Context, root string, skip func(rel string, d fs.DirEntry) bool) (files []*file, odd []string, err error) {
	err = filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return unreadable(p, err)
		}
		if p == root {
			return ctx.Err()
		}
		rel := filepath.ToSlash(strings.TrimPrefix(p[len(root):], string(filepath.Separator)))
		if skip(rel, d) {
			if d.IsDir() {
				return filepath.SkipDir
			}
			return nil
		}
		switch {
		case d.IsDir():
			return ctx.Err()
		case !d.Type().IsRegular():
			odd = append(odd, rel)
			return nil
		}
		files = append(files, &file{name: rel, path: p})
		return nil
	})
	return files, odd, err
}

// selectFiles opens every file, notes its size, and keeps those that are not
// empty and whose beginning is accepted. Several files are looked at at once.
func selectFiles(ctx context.Context, files []*file, accept func(f *file, head []byte) bool) (kept []*file, skipped []string, err error) {
	keep := make([]bool, len(files))
	errs := make([]error, len(files))
	var next atomic.Int64
	var failed atomic.Bool
	var wg sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(files)) {
		wg.Go(func() {
			head := make([]byte, headSize)
			for {
				i := int(next.Add(1)) - 1
				if i >= len(files) || failed.Load() || ctx.Err() != nil {
					return
				}
				n, err := files[i].readHead(head)
				if err != nil {
					errs[i] = err
					failed.Store(true)
					return
				}
				keep[i] = n > 0 && accept(files[i], head[:n])
			}
		})
	}
	wg.Wait()
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	for i, f := range files {
		switch {
		case errs[i] != nil:
			return nil, nil, errs[i]
		case keep[i]:
			kept = append(kept, f)
		case f.size > 0:
			skipped = append(skipped, f.name)
		}
	}
	return kept, skipped, nil
}

// readHead notes the file's size and reads its beginning.
func (f *file) readHead(head []byte) (int, error) {
	h, err := os.Open(f.path)
	if err != nil {
		return 0, unreadable(f.path, err)
	}
	defer h.Close()
	info, err := h.Stat()
	if err != nil {
		return 0, unreadable(f.path, err)
	}
	f.size = info.Size()
	n, err := io.ReadFull(h, head[:min(int64(len(head)), f.size)])
	if err != nil {
		return 0, unreadable(f.path, err)
	}
	return n, nil
}

// isText judges by the beginning of a file; a character may be cut at its end.
func isText(f *file, head []byte) bool {
	if bytes.IndexByte(head, 0) >= 0 {
		return false
	}
	if int64(len(head)) < f.size {
		for i := 0; i < utf8.UTFMax && len(head) > 0 && !utf8.Valid(head); i++ {
			head = head[:len(head)-1]
		}
	}
	return utf8.Valid(head)
}

// isGenerated reports whether Go source says that a program wrote it, in the
// form that the go command's documentation lays down.
func isGenerated(head []byte) bool {
	const prefix, suffix = "// Code generated ", " DO NOT EDIT."
	for len(head) > 0 {
		i := bytes.Index(head, []byte(prefix))
		if i < 0 {
			return false
		}
		start := i == 0 || head[i-1] == '\n'
		line, rest, _ := bytes.Cut(head[i+len(prefix):], []byte("\n"))
		if start && bytes.HasSuffix(bytes.TrimSuffix(line, []byte("\r")), []byte(suffix)) {
			return true
		}
		head = rest
	}
	return false
}

// part splits the files into c.Train and c.Validation.
func (c *Corpus) part(from string, files []*file) error {
	var total int64
	for _, f := range files {
		total += f.size
	}
	if total < minCorpus {
		return &SourceError{
			Path: from, Problem: TooSmall, Detail: fmt.Sprintf("%d bytes of text, at least %d are needed", total, minCorpus),
			Advice: "give --data more text",
		}
	}
	for _, unit := range []func(*file) string{
		func(f *file) string { return path.Dir(f.name) },
		func(f *file) string { return f.name },
	} {
		if chosen := chooseUnits(files, total/valShare, unit); chosen != nil {
			var train, val []segment
			for _, f := range files {
				if s := (segment{file: f, size: f.size}); chosen[unit(f)] {
					val = append(val, s)
				} else {
					train = append(train, s)
				}
			}
			slices.SortStableFunc(val, func(a, b segment) int { return cmp.Compare(nameHash(a.file.name), nameHash(b.file.name)) })
			c.Train, c.Validation = newText(train), newText(val)
			return nil
		}
	}
	return c.partByBlocks(files, total)
}

// chooseUnits picks units of files (directories, or files) in the order of
// their hashes until target bytes are together. Units that are large beside
// the target are left to training. It returns nil if that does not give at
// least half the target from several units.
func chooseUnits(files []*file, target int64, unit func(*file) string) map[string]bool {
	sizes := make(map[string]int64)
	var names []string
	for _, f := range files {
		u := unit(f)
		if sizes[u] == 0 {
			names = append(names, u)
		}
		sizes[u] += f.size
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(nameHash(a), nameHash(b)), cmp.Compare(a, b))
	})
	chosen := make(map[string]bool)
	var sum int64
	for _, u := range names {
		if sizes[u] <= target/minValUnits && sum+sizes[u] <= target {
			chosen[u] = true
			sum += sizes[u]
		}
	}
	if sum < target/2 {
		return nil
	}
	return chosen
}

func nameHash(name string) uint64 {
	h := sha256.Sum256([]byte(name))
	return binary.BigEndian.Uint64(h[:])
}

// partByBlocks gives every 20th block of lines of the whole text to
// validation; of fewer blocks, the middle one.
func (c *Corpus) partByBlocks(files []*file, total int64) error {
	all := make([]segment, len(files))
	for i, f := range files {
		all[i] = segment{file: f, size: f.size}
	}
	text := newText(all)
	block := min(max(total/fewestBlocks, 2<<10), 64<<10)
	n := int(total / block)
	period := min(valShare, n)
	var train, val []segment
	last := int64(0)
	for i := period / 2; i < n; i += period {
		from, err := text.lineAfter(int64(i) * block)
		if err != nil {
			return err
		}
		to, err := text.lineAfter(min(int64(i+1)*block, total))
		if err != nil {
			return err
		}
		train = append(train, text.cut(last, from)...)
		val = append(val, text.cut(from, to)...)
		last = to
	}
	train = append(train, text.cut(last, total)...)
	c.Train, c.Validation = newText(train), newText(val)
	return nil
}

// lineAfter returns the start of the first line at or after off, or off itself
// where lines are very long.
func (t *Text) lineAfter(off int64) (int64, error) {
	if off <= 0 || off >= t.size {
		return min(max(off, 0), t.size), nil
	}
	b := make([]byte, min(lineSearch, t.size-off+1))
	if _, err := t.ReadAt(b, off-1); err != nil {
		return 0, err
	}
	if i := bytes.IndexByte(b, '\n'); i >= 0 {
		return off + int64(i), nil
	}
	return off, nil
}

// cut returns the segments of the bytes from..to.
func (t *Text) cut(from, to int64) []segment {
	var parts []segment
	for _, s := range t.segments {
		lo, hi := max(from, s.start), min(to, s.start+s.size)
		if lo < hi {
			parts = append(parts, segment{file: s.file, off: s.off + lo - s.start, size: hi - lo})
		}
	}
	return parts
}
