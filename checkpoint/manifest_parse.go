// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"errors"
	"fmt"
	"maps"
	"math"

	"github.com/cohort-ml/cohort/checkpoint/safetensors"
)

// parseManifest reads a manifest of this version or of version 1, which lists the files
// alone. Anything that a save would not have written is an error: nothing in the result lies
// outside its file or its tensor.
func parseManifest(text []byte) (*Manifest, error) {
	m, err := parsePart(text)
	if err != nil {
		return nil, err
	}
	files := make(map[string]int64, len(m.Files))
	for _, f := range m.Files {
		files[f.Name] = f.Bytes
	}
	left := maps.Clone(files)
	for _, s := range m.Sections {
		for _, t := range s.Tensors {
			if err := t.check(files); err != nil {
				return nil, fmt.Errorf("has the tensor %q of %s %w", t.Name, s.Name, err)
			}
			for _, b := range t.Boxes {
				size := safetensors.Info{DType: t.DType, Shape: b.Shape}.NumBytes()
				if left[b.File] -= size; left[b.File] < 0 {
					return nil, fmt.Errorf("has more tensors in the %d bytes of %q than fit: %q of %s is one of them", files[b.File], b.File, t.Name, s.Name)
				}
			}
		}
	}
	return m, nil
}

// versionError is the error of a manifest that this program does not understand.
type versionError struct{ version int }

func (e *versionError) Error() string {
	return fmt.Sprintf("has version %d, this program reads versions 1 to %d: use the program that wrote it, or a newer one", e.version, manifestVersion)
}

// isNewer says whether err is of a manifest that a newer program has written, and whose bytes
// are as it wrote them.
func isNewer(text []byte, err error) bool {
	var v *versionError
	return errors.As(err, &v) && v.version > manifestVersion && isIntact(text)
}

// parsePart reads what one rank says, whose boxes need not be whole tensors and may lie in files
// of which others tell.
func parsePart(text []byte) (*Manifest, error) {
	m := &Manifest{}
	format, seen, own := "", map[string]bool{}, false
	s := &scanner{text: text}
	s.object(func(name string) {
		if seen[name] {
			s.fail("%q is there twice", name)
			return
		}
		seen[name] = true
		switch {
		case name == "format":
			format = s.str()
			if s.err == nil && format != manifestFormat {
				s.err = fmt.Errorf("has format %q, not %q", format, manifestFormat)
			}
		case name == "version":
			m.Version = int(s.number())
			// A later version may have fields that this one does not know.
			if s.err == nil && (m.Version < 1 || m.Version > manifestVersion) {
				s.err = &versionError{m.Version}
			}
		case m.Version == 0 || format == "":
			s.fail("the format and the version do not come first")
		case name == "step":
			m.Step = int(s.number())
		case name == "files":
			s.array(func() { m.Files = append(m.Files, s.file()) })
		case m.Version == 1:
			s.fail("the member %q is not known in version 1", name)
		case name == ownSum:
			own = true
			s.sum()
		default:
			s.member(m, name)
		}
	})
	if s.peek(); s.err == nil && s.at < len(text) {
		s.fail("something after its end")
	}
	if s.err == nil && (m.Version == 0 || format == "") {
		s.fail("no format and version")
	}
	if s.err != nil {
		return nil, s.err
	}
	if m.Version == 1 {
		m.Ranks = 1
	} else if !own || !isIntact(text) {
		return nil, errors.New("has not the checksum that it says: its bytes were changed")
	}
	return m, m.checkNames()
}

// member reads a member that came with version 2.
func (s *scanner) member(m *Manifest, name string) {
	switch name {
	case "ranks":
		m.Ranks = int(s.number())
	case "mesh":
		s.decode(&m.Mesh)
	case "program":
		m.Program = s.str()
	case "time":
		s.decode(&m.Time)
	case "folder":
		m.Folder = s.str()
	case "metric":
		s.decode(&m.Metric)
	case "values":
		s.decode(&m.Values)
	case "rank_values":
		s.decode(&m.RankValues)
	case "tensors":
		s.object(func(name string) {
			section := Section{Name: name}
			s.object(func(name string) { section.Tensors = append(section.Tensors, s.tensor(name)) })
			m.Sections = append(m.Sections, section)
		})
	default:
		s.fail("the member %q is not known", name)
	}
}

func (s *scanner) file() (f FileInfo) {
	s.object(func(name string) {
		switch name {
		case "name":
			f.Name = s.str()
		case "bytes":
			f.Bytes = s.number()
		case "crc32c":
			f.CRC = s.sum()
		case "rank":
			f.Rank = int(s.number())
		default:
			s.fail("the member %q of a file is not known", name)
		}
	})
	return f
}

func (s *scanner) tensor(name string) StoredTensor {
	t := StoredTensor{Name: name}
	s.object(func(name string) {
		switch name {
		case "dtype":
			var ok bool
			if text := s.str(); s.err == nil {
				if t.DType, ok = safetensors.ParseDType(text); !ok {
					s.fail("the tensor %q has the unknown dtype %q", t.Name, text)
				}
			}
		case "shape":
			t.Shape = s.numbers()
		case "placements":
			s.array(func() { t.Placements = append(t.Placements, s.str()) })
		case "boxes":
			s.array(func() { t.Boxes = append(t.Boxes, s.box()) })
		default:
			s.fail("the member %q of the tensor %q is not known", name, t.Name)
		}
	})
	return t
}

func (s *scanner) box() (b StoredBox) {
	b.Sums = []uint32{}
	s.object(func(name string) {
		switch name {
		case "file":
			b.File = s.str()
		case "at":
			b.At = s.number()
		case "start":
			b.Start = s.numbers()
		case "shape":
			b.Shape = s.numbers()
		case "crc32c":
			if b.Sums = s.sumList(); b.Sums == nil {
				b.Sums = []uint32{} // nil means that there are none to compare with
			}
		default:
			s.fail("the member %q of a box is not known", name)
		}
	})
	return b
}

// checkNames reports names that are there twice or lead elsewhere, and numbers beyond all sense.
func (m *Manifest) checkNames() error {
	if m.Ranks < 1 || m.Ranks > maxRanks || len(m.RankValues) > m.Ranks {
		return fmt.Errorf("has %d ranks, and values of %d", m.Ranks, len(m.RankValues))
	}
	if m.Folder != "" {
		if err := checkName(m.Folder); err != nil {
			return err
		}
	}
	seen := make(map[string]bool, len(m.Files))
	for _, f := range m.Files {
		if err := checkName(f.Name); err != nil {
			return err
		}
		if seen[f.Name] {
			return fmt.Errorf("lists %q twice", f.Name)
		}
		seen[f.Name] = true
	}
	sections := map[string]bool{}
	for _, s := range m.Sections {
		if err := checkSection(s.Name); err != nil {
			return fmt.Errorf("has the section %q, which is no name for one", s.Name)
		}
		if sections[s.Name] {
			return fmt.Errorf("has the section %q twice", s.Name)
		}
		sections[s.Name] = true
		tensors := make(map[string]bool, len(s.Tensors))
		for _, t := range s.Tensors {
			if tensors[t.Name] {
				return fmt.Errorf("has the tensor %q of %s twice", t.Name, s.Name)
			}
			tensors[t.Name] = true
		}
	}
	return nil
}

// check reports a tensor that does not fit its files, whose sizes are given by name, or whose
// boxes are not all of it.
func (t StoredTensor) check(files map[string]int64) error {
	if len(t.Shape) > maxDims {
		return fmt.Errorf("of %d dims, more than %d", len(t.Shape), maxDims)
	}
	whole := t.Info().NumBytes()
	if whole < 0 {
		return fmt.Errorf("with the shape %v of %v, which makes no sense", t.Shape, t.DType)
	}
	var sum int64
	for i, b := range t.Boxes {
		fail := func(format string, args ...any) error {
			return fmt.Errorf("with box %d %s", i, fmt.Sprintf(format, args...))
		}
		if len(b.Start) != len(t.Shape) || len(b.Shape) != len(t.Shape) {
			return fail("of %d and %d dims, and the tensor has %d", len(b.Start), len(b.Shape), len(t.Shape))
		}
		for d, n := range t.Shape {
			if b.Start[d] < 0 || b.Shape[d] < 0 || b.Start[d] > n || b.Shape[d] > n-b.Start[d] {
				return fail("outside of the tensor: start %v, shape %v of %v", b.Start, b.Shape, t.Shape)
			}
		}
		size := safetensors.Info{DType: t.DType, Shape: b.Shape}.NumBytes()
		bytes, ok := files[b.File]
		switch {
		case size < 0:
			return fail("of the shape %v, which makes no sense", b.Shape)
		case !ok:
			return fail("in the file %q, which the manifest does not list", b.File)
		case b.At < 0 || b.At > bytes || size > bytes-b.At:
			return fail("outside of the file %q: %d bytes from %d of %d", b.File, size, b.At, bytes)
		case b.Sums != nil && int64(len(b.Sums)) != numChunks(size):
			return fail("with %d checksums for %d bytes: want one for each MiB", len(b.Sums), size)
		case sum > math.MaxInt64-size:
			return fail("beyond what can be counted")
		}
		sum += size
	}
	if sum != whole {
		return fmt.Errorf("is of %d bytes, and its boxes have %d", whole, sum)
	}
	return t.checkOverlap()
}
