// SPDX-License-Identifier: Apache-2.0

package torchsave

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"path"
	"slices"
	"strings"
)

const (
	// maxMembers bounds the members of an archive, maxDirectory the bytes of its directory.
	maxMembers   = 1 << 20
	maxDirectory = 128 << 20

	endBytes     = 22
	end64Bytes   = 56
	locatorBytes = 20
	centralBytes = 46
	localBytes   = 30
	maxComment   = 1 << 16

	endMark     = 0x06054b50
	end64Mark   = 0x06064b50
	locatorMark = 0x07064b50
	centralMark = 0x02014b50
	localMark   = 0x04034b50

	flagEncrypted = 1
	extraZip64    = 1
	max32         = 1<<32 - 1
	max16         = 1<<16 - 1
)

// member is a stored member of an archive. Its header and its bytes lie in [header, limit).
type member struct {
	name          string
	header, limit int64
	size          int64
	crc           uint32 // CRC-32 (IEEE) of the bytes; 0 where the writer computed none
}

// archive is a zip archive of stored members that do not overlap.
type archive struct {
	file    string
	r       io.ReaderAt
	size    int64
	members map[string]*member
}

var le = binary.LittleEndian

func (a *archive) errorf(member, format string, args ...any) error {
	return &FormatError{File: a.file, Member: member, Problem: fmt.Sprintf(format, args...)}
}

// read returns n bytes of the file.
func (a *archive) read(what string, at, n int64) ([]byte, error) {
	b := make([]byte, n)
	if k, err := a.r.ReadAt(b, at); k < len(b) {
		if err == nil || errors.Is(err, io.EOF) {
			return nil, a.errorf("", "ends within %s: the file was cut short", what)
		}
		return nil, fmt.Errorf("torchsave: %s: reading %s: %w", a.file, what, err)
	}
	return b, nil
}

// openArchive reads the directory of an archive.
func openArchive(r io.ReaderAt, size int64, file string) (*archive, error) {
	a := &archive{file: file, r: r, size: size, members: map[string]*member{}}
	count, at, length, err := a.findDirectory()
	if err != nil {
		return nil, err
	}
	switch {
	case count > maxMembers || length > maxDirectory:
		return nil, a.errorf("", "has a directory of %d members and %d bytes, more than the %d and %d allowed", count, length, maxMembers, maxDirectory)
	case count*centralBytes > length:
		return nil, a.errorf("", "claims %d members in a directory of %d bytes", count, length)
	}
	dir, err := a.read("its directory", at, length)
	if err != nil {
		return nil, err
	}
	var list []*member
	for range count {
		m, rest, err := a.parseMember(dir)
		if err != nil {
			return nil, err
		}
		if a.members[m.name] != nil {
			return nil, a.errorf(m.name, "is there twice")
		}
		a.members[m.name] = m
		list = append(list, m)
		dir = rest
	}
	if len(dir) > 0 {
		return nil, a.errorf("", "has %d bytes in its directory after the last member", len(dir))
	}
	slices.SortFunc(list, func(a, b *member) int { return cmp.Compare(a.header, b.header) })
	for i, m := range list {
		m.limit = at
		if i+1 < len(list) {
			m.limit = list[i+1].header
		}
		if m.header > at || m.size > at || m.header+localBytes+int64(len(m.name))+m.size > m.limit {
			return nil, a.errorf(m.name, "has %d bytes from byte %d on and overlaps what begins at byte %d", m.size, m.header, m.limit)
		}
	}
	return a, nil
}

// findDirectory finds the directory by the record at the end of the file.
func (a *archive) findDirectory() (count, at, length int64, err error) {
	tail, err := a.read("its end", max(0, a.size-endBytes-maxComment), min(a.size, endBytes+maxComment))
	if err != nil {
		return 0, 0, 0, err
	}
	end := -1
	for i := len(tail) - endBytes; i >= 0; i-- {
		if le.Uint32(tail[i:]) == endMark && i+endBytes+int(le.Uint16(tail[i+20:])) == len(tail) {
			end = i
			break
		}
	}
	if end < 0 {
		return 0, 0, 0, a.notZip()
	}
	b := tail[end:]
	limit := a.size - int64(len(b)) // where the directory ends
	disk := le.Uint16(b[4:])
	count, length, at = int64(le.Uint16(b[10:])), int64(le.Uint32(b[12:])), int64(le.Uint32(b[16:]))
	// PyTorch writes a record of 64 bits also where it needs none.
	if large := count == max16 || length == max32 || at == max32; large || a.hasLocator(limit) {
		count64, at64, length64, limit64, err := a.findDirectory64(limit)
		if err != nil {
			return 0, 0, 0, err
		}
		if !large && (count64 != count || at64 != at || length64 != length) {
			return 0, 0, 0, a.errorf("", "has two records of its directory that differ")
		}
		count, at, length, limit = count64, at64, length64, limit64
	}
	switch {
	case disk != 0 && disk != max16:
		return 0, 0, 0, a.errorf("", "is one of several parts of a zip archive")
	case at < 0 || length < 0 || count < 0 || at > limit || length != limit-at:
		return 0, 0, 0, a.errorf("", "has a directory of %d bytes at byte %d, which does not end where its last record begins (byte %d): the file is damaged or has something in front", length, at, limit)
	}
	return count, at, length, nil
}

// hasLocator reports whether a zip64 locator is in front of the last record.
func (a *archive) hasLocator(end int64) bool {
	var mark [4]byte
	if end < locatorBytes+end64Bytes {
		return false
	}
	_, err := a.r.ReadAt(mark[:], end-locatorBytes)
	return err == nil && le.Uint32(mark[:]) == locatorMark
}

// findDirectory64 finds it where the numbers are too large for the record of 32 bits, which
// begins at end.
func (a *archive) findDirectory64(end int64) (count, at, length, limit int64, err error) {
	fail := func() (int64, int64, int64, int64, error) {
		return 0, 0, 0, 0, a.errorf("", "has a damaged zip64 record")
	}
	if end < locatorBytes+end64Bytes {
		return fail()
	}
	locator, err := a.read("its zip64 locator", end-locatorBytes, locatorBytes)
	if err != nil {
		return 0, 0, 0, 0, err
	}
	where := le.Uint64(locator[8:])
	if le.Uint32(locator) != locatorMark || where > uint64(end-locatorBytes-end64Bytes) {
		return fail()
	}
	b, err := a.read("its zip64 record", int64(where), end64Bytes)
	if err != nil {
		return 0, 0, 0, 0, err
	}
	if le.Uint32(b) != end64Mark {
		return fail()
	}
	return int64(le.Uint64(b[32:])), int64(le.Uint64(b[48:])), int64(le.Uint64(b[40:])), int64(where), nil
}

// parseMember reads an entry of the directory.
func (a *archive) parseMember(b []byte) (m *member, rest []byte, err error) {
	if len(b) < centralBytes || le.Uint32(b) != centralMark {
		return nil, nil, a.errorf("", "has a damaged directory")
	}
	numName, numExtra, numComment := int(le.Uint16(b[28:])), int(le.Uint16(b[30:])), int(le.Uint16(b[32:]))
	next := centralBytes + numName + numExtra + numComment
	if len(b) < next {
		return nil, nil, a.errorf("", "has a damaged directory")
	}
	name := string(b[centralBytes : centralBytes+numName])
	compressed, size, header := uint64(le.Uint32(b[20:])), uint64(le.Uint32(b[24:])), uint64(le.Uint32(b[42:]))
	// The numbers that 32 bits do not hold follow in this order.
	for extra := b[centralBytes+numName:][:numExtra]; len(extra) >= 4; {
		id, n := le.Uint16(extra), int(le.Uint16(extra[2:]))
		if 4+n > len(extra) {
			break
		}
		if field := extra[4 : 4+n]; id == extraZip64 {
			for _, number := range []*uint64{&size, &compressed, &header} {
				if *number == max32 && len(field) >= 8 {
					*number, field = le.Uint64(field), field[8:]
				}
			}
		}
		extra = extra[4+n:]
	}
	method, flags := le.Uint16(b[10:]), le.Uint16(b[8:])
	switch {
	case flags&flagEncrypted != 0:
		return nil, nil, a.errorf(name, "is encrypted")
	case method != 0 && strings.Contains(name, "/code/__torch__"):
		return nil, nil, a.errorf("", "%s", torchScript)
	case method != 0:
		return nil, nil, a.errorf(name, "is compressed (method %d): members of torch.save are stored as they are", method)
	case compressed != size:
		return nil, nil, a.errorf(name, "is stored and has %d bytes in the file and %d outside: the file is damaged", compressed, size)
	case size > uint64(a.size) || header > uint64(a.size):
		return nil, nil, a.errorf(name, "has %d bytes from byte %d on, and the file has %d", size, header, a.size)
	case !isPlainPath(name):
		return nil, nil, a.errorf(name, "has a name that leaves the archive")
	}
	return &member{name: name, header: int64(header), size: int64(size), crc: le.Uint32(b[16:])}, b[next:], nil
}

// torchScript is what is wrong with an archive of compiled modules.
const torchScript = "is a TorchScript archive, which has code: save the module's state_dict instead"

// isPlainPath accepts names such as archive/data/0, which do not leave the archive.
func isPlainPath(name string) bool {
	return name != "" && !strings.ContainsAny(name, "\\\x00") && !path.IsAbs(name) && path.Clean(name) == strings.TrimSuffix(name, "/") && name != ".." && !strings.HasPrefix(name, "../")
}

// data returns the bytes of a member where they lie. It checks the header in front of them.
func (a *archive) data(m *member) (*io.SectionReader, error) {
	h, err := a.read("the header of a member", m.header, localBytes)
	if err != nil {
		return nil, err
	}
	if le.Uint32(h) != localMark {
		return nil, a.errorf(m.name, "has no header at byte %d", m.header)
	}
	numName, numExtra := int64(le.Uint16(h[26:])), int64(le.Uint16(h[28:]))
	begin := m.header + localBytes + numName + numExtra
	if begin+m.size > m.limit {
		return nil, a.errorf(m.name, "overlaps what begins at byte %d", m.limit)
	}
	if numName != int64(len(m.name)) || le.Uint16(h[8:]) != 0 {
		return nil, a.errorf(m.name, "has another name or method in its header at byte %d", m.header)
	}
	name, err := a.read("the header of a member", m.header+localBytes, numName)
	if err != nil {
		return nil, err
	}
	if string(name) != m.name {
		return nil, a.errorf(m.name, "is called %q in its header at byte %d", name, m.header)
	}
	return io.NewSectionReader(a.r, begin, m.size), nil
}

// checkSum reads a member, and compares its bytes with its checksum.
func (a *archive) checkSum(ctx context.Context, m *member) error {
	r, err := a.data(m)
	if err != nil {
		return err
	}
	h := crc32.NewIEEE()
	for buf := make([]byte, min(m.size, 1<<20)); ; {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		n, err := r.Read(buf)
		h.Write(buf[:n])
		if err == io.EOF || n == 0 && err == nil {
			break
		}
		if err != nil {
			return fmt.Errorf("torchsave: %s: reading %s: %w", a.file, m.name, err)
		}
	}
	if sum := h.Sum32(); sum != m.crc {
		return a.errorf(m.name, "has the CRC-32 %08x, the directory of the archive says %08x: its bytes were changed", sum, m.crc)
	}
	return nil
}

// bytes returns a member of at most limit bytes.
func (a *archive) bytes(m *member, limit int64) ([]byte, error) {
	if m.size > limit {
		return nil, a.errorf(m.name, "has %d bytes, more than the %d allowed", m.size, limit)
	}
	r, err := a.data(m)
	if err != nil {
		return nil, err
	}
	b := make([]byte, m.size)
	if _, err := io.ReadFull(r, b); err != nil {
		return nil, fmt.Errorf("torchsave: %s: reading %s: %w", a.file, m.name, err)
	}
	return b, nil
}

// notZip says what a file is that is no zip archive.
func (a *archive) notZip() error {
	head := make([]byte, min(a.size, 512))
	if _, err := a.r.ReadAt(head, 0); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("torchsave: %s: %w", a.file, err)
	}
	const again = ": load it with PyTorch and save it again with torch.save"
	// The pickle of the number that begins a file of PyTorch 0.2 to 1.5.
	legacy := []byte("\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.")
	switch {
	case len(head) == 0:
		return a.errorf("", "is empty")
	case bytes.HasPrefix(head, []byte("PK\x03\x04")):
		return a.errorf("", "begins as a zip archive and has no directory at its end: the file was cut short")
	case len(head) > 2+len(legacy) && head[0] == 0x80 && bytes.HasPrefix(head[2:], legacy):
		return a.errorf("", "has the format before PyTorch 1.6 (_use_new_zipfile_serialization=False), which is not read%s", again)
	case len(head) > 262 && string(head[257:262]) == "ustar":
		return a.errorf("", "is a tar archive, the format of PyTorch 0.1, which is not read%s", again)
	case head[0] == 0x80:
		return a.errorf("", "is a bare pickle, and no file of torch.save%s", again)
	case len(head) > 9 && le.Uint64(head) < 1<<32 && head[8] == '{':
		return a.errorf("", "is a safetensors file: open it as one")
	case bytes.HasPrefix(head, []byte("\x89HDF")):
		return a.errorf("", "is an HDF5 file, and no file of torch.save")
	}
	return a.errorf("", "is no zip archive, and no file of torch.save")
}
