// SPDX-License-Identifier: Apache-2.0

package flightlog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

// Limits of what is read. A dump of a recorder of the usual size has some
// 500 KiB, 2,048 objects and 30,000 commas.
const (
	maxBytes   = 16 << 20
	maxObjects = 1 << 16
	maxCommas  = 1 << 18
	maxWorld   = 1 << 20
	maxFiles   = 1 << 14
	maxText    = 2048 // of any text in a dump, in bytes
)

// FileName is the name of a rank's dump in the directory of a run.
func FileName(rank int) string { return fmt.Sprintf("rank-%d.json", rank) }

// Write puts the dump into a directory, whole or not at all, in place of an
// older one of that rank. Its owner alone may read it: call sites and errors
// tell of the program.
func Write(dir string, d *Dump) error {
	text, err := json.Marshal(d)
	if err != nil {
		return fmt.Errorf("flightlog: dump of rank %d: %w", d.Rank, err)
	}
	f, err := os.CreateTemp(dir, ".rank-*") // for its owner only
	if err != nil {
		return fmt.Errorf("flightlog: dump of rank %d: %w", d.Rank, err)
	}
	_, err = f.Write(append(text, '\n'))
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(f.Name(), filepath.Join(dir, FileName(d.Rank)))
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return fmt.Errorf("flightlog: dump of rank %d: %w", d.Rank, err)
	}
	return nil
}

// Read reads one dump. What is not one, or larger than a dump can be, is an
// error.
func Read(r io.Reader) (*Dump, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxBytes+1))
	if err != nil {
		return nil, err
	}
	return parse(text)
}

func parse(text []byte) (*Dump, error) {
	// What the text can become is bounded before it is decoded: an empty
	// element of a list takes a byte there and hundreds here.
	switch {
	case len(text) > maxBytes:
		return nil, fmt.Errorf("more than %d bytes: no dump is that large", maxBytes)
	case bytes.Count(text, []byte{'{'}) > maxObjects || bytes.Count(text, []byte{','}) > maxCommas:
		return nil, fmt.Errorf("more than %d objects or %d commas: no dump has so many", maxObjects, maxCommas)
	}
	d := &Dump{}
	if err := json.Unmarshal(text, d); err != nil {
		return nil, fmt.Errorf("not a dump: %w", err)
	}
	if err := d.check(); err != nil {
		return nil, fmt.Errorf("not a dump: %w", err)
	}
	d.clean()
	return d, nil
}

// check returns what in a dump refers to nothing.
func (d *Dump) check() error {
	switch {
	case d.Version != Version:
		return fmt.Errorf("version %d: this program reads version %d", d.Version, Version)
	case d.WorldSize < 1 || d.WorldSize > maxWorld || d.Rank < 0 || d.Rank >= d.WorldSize:
		return fmt.Errorf("rank %d of %d", d.Rank, d.WorldSize)
	}
	for i := range d.Groups {
		g := &d.Groups[i]
		switch {
		case g.Size < 1 || g.Size > d.WorldSize || g.Rank < 0 || g.Rank >= g.Size:
			return fmt.Errorf("groups[%d]: rank %d of %d in a job of %d", i, g.Rank, g.Size, d.WorldSize)
		case g.Ranks != nil && len(g.Ranks) != g.Size:
			return fmt.Errorf("groups[%d]: %d numbers of %d ranks", i, len(g.Ranks), g.Size)
		case g.world(g.Rank) != d.Rank:
			return fmt.Errorf("groups[%d]: its rank %d is rank %d of the job, the dump is of rank %d", i, g.Rank, g.world(g.Rank), d.Rank)
		}
		for _, list := range [][]int{g.Ranks, g.Culprits} {
			for _, r := range list {
				if r < 0 || r >= d.WorldSize {
					return fmt.Errorf("groups[%d] names rank %d of %d", i, r, d.WorldSize)
				}
			}
		}
		for _, s := range g.Skew {
			if s.Rank < 0 || s.Rank >= d.WorldSize {
				return fmt.Errorf("groups[%d] has the lateness of rank %d of %d", i, s.Rank, d.WorldSize)
			}
		}
		for _, m := range g.Members {
			if m.Rank < 0 || m.Rank >= d.WorldSize {
				return fmt.Errorf("groups[%d] has member %d of %d", i, m.Rank, d.WorldSize)
			}
		}
	}
	for i := range d.Entries {
		e := &d.Entries[i]
		if e.Group < 0 || e.Group >= len(d.Groups) {
			return fmt.Errorf("entries[%d] is of group %d of %d", i, e.Group, len(d.Groups))
		}
		size := d.Groups[e.Group].Size
		switch {
		case e.Site < 0 || e.Site > 0 && e.Site >= len(d.Sites):
			return fmt.Errorf("entries[%d] has site %d of %d", i, e.Site, len(d.Sites))
		case e.Root != nil && (*e.Root < 0 || *e.Root >= size), e.Peer != nil && (*e.Peer < -1 || *e.Peer >= size):
			return fmt.Errorf("entries[%d] names a rank that a group of %d does not have", i, size)
		case e.State != Called && e.State != Begun && e.State != Ended && e.State != Failed:
			return fmt.Errorf("entries[%d] has state %q", i, e.State)
		case e.CalledNS < 0 || e.BegunNS < 0 || e.EndedNS < 0:
			return fmt.Errorf("entries[%d] has a time before the start", i)
		}
	}
	return nil
}

// clean makes all texts printable.
func (d *Dump) clean() {
	cleanAll := func(texts ...*string) {
		for _, t := range texts {
			*t = clean(*t)
		}
	}
	cleanAll(&d.Host, &d.Reason)
	for i := range d.Sites {
		cleanAll(&d.Sites[i])
	}
	for i := range d.Groups {
		g := &d.Groups[i]
		cleanAll(&g.Name, &g.Key, &g.Transport, &g.Error)
		for j := range g.Members {
			cleanAll(&g.Members[j].Host)
		}
	}
	for i := range d.Entries {
		e := &d.Entries[i]
		cleanAll(&e.Op, &e.DType, &e.Reduce, &e.Layout, &e.Error)
	}
}

// clean returns a text without what a terminal would act on, cut to a length.
func clean(s string) string {
	ok := len(s) <= maxText && utf8.ValidString(s)
	for _, r := range s {
		ok = ok && unicode.IsPrint(r)
	}
	if ok {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if b.Len() >= maxText-utf8.UTFMax {
			b.WriteString("…")
			break
		}
		switch {
		case r == '\n' || r == '\t':
			b.WriteByte(' ')
		case unicode.IsPrint(r) && r != utf8.RuneError:
			b.WriteRune(r)
		default:
			b.WriteByte('?')
		}
	}
	return b.String()
}

// Load reads dumps from files, and from directories all files rank-*.json. Where
// several are of one rank the latest counts. Files that cannot be read make an
// error that names them; the dumps of the others are returned all the same.
func Load(paths ...string) ([]*Dump, error) {
	var files []string
	var errs []error
	for _, p := range paths {
		st, err := os.Stat(p)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if !st.IsDir() {
			files = append(files, p)
			continue
		}
		found, err := filepath.Glob(filepath.Join(globQuote(p), "rank-*.json"))
		if err == nil && len(found) == 0 {
			err = fmt.Errorf("%s has no dump (rank-*.json)", p)
		}
		if err != nil {
			errs = append(errs, err)
		}
		files = append(files, found...)
	}
	if len(files) > maxFiles {
		return nil, fmt.Errorf("flightlog: %d files, at most %d are read", len(files), maxFiles)
	}
	dumps, failed := make([]*Dump, len(files)), make([]error, len(files))
	var wg sync.WaitGroup
	next := make(chan int)
	for range min(runtime.GOMAXPROCS(0), len(files)) {
		wg.Go(func() {
			for i := range next {
				dumps[i], failed[i] = readFile(files[i])
			}
		})
	}
	for i := range files {
		next <- i
	}
	close(next)
	wg.Wait()
	var good []*Dump
	for i, d := range dumps {
		if failed[i] != nil {
			errs = append(errs, fmt.Errorf("%s: %w", files[i], failed[i]))
		} else {
			good = append(good, d)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return good, fmt.Errorf("flightlog: %w", err)
	}
	return good, nil
}

// globQuote makes a pattern that stands for a path alone.
func globQuote(path string) string {
	if runtime.GOOS == "windows" {
		return path
	}
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}

// readFile reads a dump from a regular file: a pipe in its place would be
// waited for.
func readFile(path string) (*Dump, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, errors.New("not a regular file")
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return Read(f)
}
