// SPDX-License-Identifier: Apache-2.0

package records

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cohort-ml/cohort/internal/envvar"
)

// cache is the directory for indexes and for copies of files that cannot be read at any place.
type cache struct {
	dir    string
	notice func(text string)
	held   int // bytes of indexes in memory
}

// openCache makes the directory. dir "" is that of COHORT_CACHE, or else the user's cache.
func openCache(dir string, notice func(string)) (*cache, error) {
	if dir == "" {
		dir = envvar.Cache.Get("")
	}
	if dir == "" {
		own, err := os.UserCacheDir()
		if err != nil { // a container without a home
			own = filepath.Join(os.TempDir(), fmt.Sprintf("cohort-%d", os.Getuid()))
		}
		dir = filepath.Join(own, "cohort", "records")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("records: the directory for indexes: %w; set COHORT_CACHE to another one", err)
	}
	return &cache{dir: dir, notice: notice}, nil
}

func (c *cache) tell(format string, args ...any) {
	if c.notice != nil {
		c.notice(fmt.Sprintf(format, args...))
	}
}

// temporary is a file that gets its name when it is whole.
type temporary struct {
	*os.File
	name string
	done bool
}

func createTemporary(name string) (*temporary, error) {
	f, err := os.CreateTemp(filepath.Dir(name), filepath.Base(name)+"-*")
	if err != nil {
		return nil, fmt.Errorf("records: %w", err)
	}
	return &temporary{File: f, name: name}, nil
}

func (t *temporary) fail(err error) error {
	return fmt.Errorf("records: writing %s: %w; free the disk, or set COHORT_CACHE to another directory", t.name, err)
}

// keep gives the file its name.
func (t *temporary) keep() error {
	err := errors.Join(t.Chmod(0o644), t.Close())
	if err == nil {
		err = os.Rename(t.Name(), t.name)
	}
	if err != nil {
		return t.fail(err)
	}
	t.done = true
	return nil
}

// discard removes the file if it was not kept.
func (t *temporary) discard() {
	if !t.done {
		t.Close()
		os.Remove(t.Name())
	}
}

func unreadable(path string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return &Error{Path: path, Detail: "there is no such file"}
	}
	if pe := (*fs.PathError)(nil); errors.As(err, &pe) {
		err = pe.Err
	}
	return &Error{Path: path, Detail: "cannot be read: " + err.Error()}
}

// maxKept bounds what [Set.Keep] keeps.
const maxKept = 4 << 30

// Keep returns what compute made earlier under this name, or calls it and keeps its result in the cache.
// The name says all that the result depends on.
func (s *Set) Keep(name string, compute func() ([]byte, error)) ([]byte, error) {
	h := sha256.Sum256([]byte(name))
	at := filepath.Join(s.cache.dir, hex.EncodeToString(h[:16])+".kept")
	if b, err := readSummed(at); err == nil {
		return b, nil
	}
	b, err := compute()
	if err != nil {
		return nil, err
	}
	out, err := createTemporary(at)
	if err != nil {
		return nil, err
	}
	defer out.discard()
	for _, part := range [][]byte{b, binary.LittleEndian.AppendUint32(nil, crc32.Checksum(b, castagnoli))} {
		if _, err := out.Write(part); err != nil {
			return nil, out.fail(err)
		}
	}
	return b, out.keep()
}

// readSummed reads a file that ends with its sum.
func readSummed(at string) ([]byte, error) {
	f, err := os.Open(at)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxKept))
	if err != nil {
		return nil, err
	}
	n := len(b) - 4
	if n < 0 || crc32.Checksum(b[:n], castagnoli) != binary.LittleEndian.Uint32(b[n:]) {
		return nil, errors.New("it is damaged")
	}
	return b[:n], nil
}
