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
	minCorpus    = 1 << 10  // bytes: less cannot be split into anything useful
	smallCorpus  = 16 << 10 // less has one block for validation,
	smallShare   = 10       // which is a larger share
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
	firstSkipped skipped
	records      []string // files of records that are read as text among others
}

// skipped is a file that is left out, and why.
type skipped struct{ name, why string }

// Note says which files were left out of a directory that a user named, and which
// are records that are read as the text that they are; "" if none.
func (c *Corpus) Note() string {
	if c.from == "" {
		return ""
	}
	var notes []string
	first := c.firstSkipped.name
	if c.firstSkipped.why != "" {
		first += " (" + c.firstSkipped.why + ")"
	}
	switch {
	case c.Skipped == 1:
		notes = append(notes, fmt.Sprintf("a file in %s is left out (not UTF-8 text, generated, or a link): %s", c.from, first))
	case c.Skipped > 1:
		notes = append(notes, fmt.Sprintf("%d files in %s are left out (not UTF-8 text, generated, or links), the first is %s", c.Skipped, c.from, first))
	}
	if n := len(c.records); n > 0 {
		notes = append(notes, fmt.Sprintf("files of records in %s that are read as the text that they are: %d, the first is %s", c.from, n, c.records[0]))
	}
	return strings.Join(notes, "; ")
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
		f, err := openFile(ctx, path, root, info.Size())
		if err != nil {
			return nil, err
		}
		files = []*file{f}
	case info.IsDir():
		if err := unended(path); err != nil {
			return nil, err
		}
		hidden := func(_ string, d fs.DirEntry) bool { return strings.HasPrefix(d.Name(), ".") }
		found, odd, err := listFiles(ctx, root, hidden)
		if err != nil {
			return nil, err
		}
		var left []skipped
		if files, left, err = selectFiles(ctx, found, func(f *file, head []byte) (string, error) {
			if why, _ := notText(f, head); why != "" {
				return why, nil
			}
			if strings.HasSuffix(f.name, ".go") && isGenerated(head) {
				return "generated", nil
			}
			return f.checkText(ctx, head)
		}); err != nil {
			return nil, err
		}
		for _, name := range odd {
			left = append(left, skipped{name: name})
		}
		c.skip(path, left)
		if len(files) == 0 {
			detail := fmt.Sprintf("no text in it, %d files skipped", c.Skipped)
			if first := c.firstSkipped; first.why != "" {
				detail += fmt.Sprintf(", the first is %s: %s", first.name, first.why)
			}
			return nil, &SourceError{Path: path, Problem: Empty, Detail: detail, Advice: "--data wants a file or directory of UTF-8 text"}
		}
		if err := c.checkRecords(files); err != nil {
			return nil, err
		}
	default:
		return nil, &SourceError{Path: path, Problem: NotText, Detail: "it is neither a file nor a directory", Advice: "--data wants a file or directory of UTF-8 text"}
	}
	return c, c.part(path, files)
}

// OpenText opens the text of one file, of any size, with the checks of
// [OpenCorpus].
func OpenText(ctx context.Context, path string) (*Text, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, missing(path, err)
	}
	if !info.Mode().IsRegular() {
		return nil, &SourceError{Path: path, Problem: NotText, Detail: "it is no file", Advice: "give a file of UTF-8 text"}
	}
	f, err := openFile(ctx, path, path, info.Size())
	if err != nil {
		return nil, err
	}
	return newText([]segment{f.all()}), nil
}

// openFile looks at all of a file, which is at root.
func openFile(ctx context.Context, path, root string, size int64) (*file, error) {
	if size == 0 {
		return nil, &SourceError{Path: path, Problem: Empty, Advice: "--data wants a file or directory of UTF-8 text"}
	}
	advice := ""
	kept, left, err := selectFiles(ctx, []*file{{name: filepath.Base(path), path: root}}, func(f *file, head []byte) (why string, err error) {
		if why, advice = notText(f, head); why != "" {
			return why, nil
		}
		return f.checkText(ctx, head)
	})
	switch {
	case err != nil:
		return nil, err
	case len(left) > 0:
		return nil, &SourceError{Path: path, Problem: NotText, Detail: left[0].why, Advice: cmp.Or(advice, "correct it, or point --data at a file or directory of UTF-8 text")}
	case len(kept) == 0:
		return nil, &SourceError{Path: path, Problem: Changed, Detail: "it is empty now", Advice: "leave it as it is while it is read"}
	case kept[0].records.kind != "":
		return nil, &SourceError{Path: path, Problem: Records, Detail: kept[0].records.kind, Advice: recordAdvice}
	}
	return kept[0], nil
}

// skip notes the files that are left out.
func (c *Corpus) skip(from string, files []skipped) {
	c.from = from
	if c.Skipped = len(files); c.Skipped > 0 {
		c.firstSkipped = slices.MinFunc(files, func(a, b skipped) int { return cmp.Compare(a.name, b.name) })
	}
}

// checkRecords refuses a directory that has more records than other text. Fewer
// are noted: source code, say, has some for its tests.
func (c *Corpus) checkRecords(files []*file) error {
	var all, sure int64
	var first *file
	for _, f := range files {
		all += f.size
		if !f.records.sure {
			continue
		}
		if first == nil {
			first = f
		}
		c.records = append(c.records, f.name)
		sure += f.size
	}
	if 2*sure > all {
		return &SourceError{Path: first.path, Problem: Records, Detail: first.records.kind, Advice: recordAdvice}
	}
	return nil
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
// empty and that reject finds nothing against. Several files are looked at at once.
func selectFiles(ctx context.Context, files []*file, reject func(f *file, head []byte) (why string, err error)) (kept []*file, left []skipped, err error) {
	why := make([]string, len(files))
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
				if err == nil && n > 0 {
					why[i], err = reject(files[i], head[:n])
				}
				if err != nil {
					errs[i] = err
					failed.Store(true)
					return
				}
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
		case f.size == 0:
		case why[i] == "":
			kept = append(kept, f)
		default:
			left = append(left, skipped{f.name, why[i]})
		}
	}
	return kept, left, nil
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
		total += f.size - f.mark
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
				if s := f.all(); chosen[unit(f)] {
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
		all[i] = f.all()
	}
	text := newText(all)
	if total < smallCorpus {
		from, to := (total-total/smallShare)/2, (total+total/smallShare)/2
		return c.partAt(text, [][2]int64{{from, to}})
	}
	block := min(max(total/fewestBlocks, 2<<10), 64<<10)
	n := int(total / block)
	period := min(valShare, n)
	var blocks [][2]int64
	for i := period / 2; i < n; i += period {
		blocks = append(blocks, [2]int64{int64(i) * block, min(int64(i+1)*block, total)})
	}
	return c.partAt(text, blocks)
}

// partAt gives blocks to validation, from the beginning of the first line in each
// to the end of the last. Lines may be so long that there is nothing between:
// if that is so in all of them, the blocks are cut where they are, but for
// characters. Of a small text that is so, too, where there is less than half.
func (c *Corpus) partAt(text *Text, blocks [][2]int64) error {
	least, lines := int64(1), text.lineAfter
	if b := blocks[0]; text.size < smallCorpus {
		least = (b[1] - b[0]) / 2
		lines = func(off int64) (int64, error) {
			off, err := text.lineAfter(off)
			if err != nil {
				return 0, err
			}
			return text.charAfter(off)
		}
	}
	for _, align := range []func(int64) (int64, error){lines, text.charAfter} {
		var train, val []segment
		last := int64(0)
		for _, b := range blocks {
			from, err := align(b[0])
			if err != nil {
				return err
			}
			to, err := align(b[1])
			if err != nil {
				return err
			}
			train = append(train, text.cut(last, from)...)
			val = append(val, text.cut(from, to)...)
			last = to
		}
		train = append(train, text.cut(last, text.size)...)
		if c.Train, c.Validation = newText(train), newText(val); c.Validation.size >= least && c.Train.size > 0 {
			break
		}
	}
	return nil
}

// charAfter returns the start of the first character at or after off.
func (t *Text) charAfter(off int64) (int64, error) {
	b := make([]byte, min(utf8.UTFMax-1, t.size-off))
	if _, err := t.ReadAt(b, off); err != nil && !errors.Is(err, io.EOF) {
		return 0, err
	}
	for i, c := range b {
		if utf8.RuneStart(c) {
			return off + int64(i), nil
		}
	}
	return off, nil
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
