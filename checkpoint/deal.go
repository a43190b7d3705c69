// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/cohort-ml/cohort/checkpoint/safetensors"
	"github.com/cohort-ml/cohort/dist/mesh"
)

// shareBytes is the least that a further rank is given to write of what several ranks hold: a
// file of its own costs about as much time as writing a few MiB.
const shareBytes = 16 << 20

// filePlan is a file that this rank writes: a part of a section.
type filePlan struct {
	section string
	frozen  bool
	boxes   []boxPlan
	name    string // set when all ranks have said how many files they write
}

// boxPlan is a box of a tensor in a file.
type boxPlan struct {
	part Part
	box  mesh.Box
	info safetensors.Info // of the box
	src  Source           // of a tensor that is copied; part is nothing then
	data []byte           // a copy of the box's bytes; nil where part has them
	of   []int            // the shape of the whole tensor that is copied
}

// shape returns that of the whole tensor.
func (p boxPlan) shape() []int {
	if p.src != nil {
		return p.of
	}
	return p.part.shape()
}

func (p boxPlan) isWhole() bool { return slices.Equal(p.box.Shape, p.shape()) }

func (f filePlan) numBytes() (n int64) {
	for _, b := range f.boxes {
		n += b.info.NumBytes()
	}
	return n
}

// deal says what this rank writes. Boxes that several ranks hold are dealt out to them. The
// ranks that hold the same boxes see the same list of them, and so they come to the same result
// without talk. together has the sections of which the first rank that has a tensor writes it,
// in one file.
func (c crew) deal(s State, away isAway, share int64, together []string) ([]filePlan, error) {
	var files []filePlan
	first := 0 // part of the section, of all parts
	for _, section := range s.sectionNames() {
		parts := s.Sections[section]
		least := share
		if slices.Contains(together, section) {
			least = 1 << 62
		}
		mine, err := c.dealSection(parts, first, away, least)
		if err != nil {
			return nil, fmt.Errorf("checkpoint: %s: %w", section, err)
		}
		first += len(parts)
		for _, frozen := range []bool{false, true} {
			list, err := filesOf(section, frozen, parts, mine, nil)
			if err != nil {
				return nil, err
			}
			files = append(files, list...)
		}
	}
	if c.rank == 0 {
		for _, section := range slices.Sorted(maps.Keys(s.Sources)) {
			files = append(files, copyOf(section, s.Sources[section]))
		}
	}
	return files, nil
}

// copyOf is the file of a section that is copied.
func copyOf(section string, src Source) filePlan {
	f := filePlan{section: section}
	for _, info := range src.Infos() {
		zeros := make([]int, len(info.Shape))
		f.boxes = append(f.boxes, boxPlan{info: info, src: src, of: info.Shape, box: mesh.Box{Start: zeros, Shape: info.Shape, LocalStart: zeros}})
	}
	return f
}

// dealSection returns the numbers of the parts of which this rank writes its boxes.
func (c crew) dealSection(parts []Part, first int, away isAway, share int64) (mine []int, err error) {
	type class struct {
		holders []int
		parts   []int
		bytes   int64
	}
	classes := map[string]*class{}
	var order []*class
	known := map[string][]int{} // holders, where nothing is away
	for i, p := range parts {
		if p.Away {
			continue
		}
		of := fmt.Sprintf("%p%v%v", p.Mesh, p.Placements, p.Frozen)
		holders := known[of]
		if holders == nil || away != nil {
			if holders, err = c.holders(p, first+i, away); err != nil {
				return nil, fmt.Errorf("tensor %q %w", p.Name, err)
			}
			known[of] = holders
		}
		key := fmt.Sprint(holders, p.Frozen)
		k := classes[key]
		if k == nil {
			k = &class{holders: holders}
			classes[key] = k
			order = append(order, k)
		}
		k.parts = append(k.parts, i)
		k.bytes += p.numBytes()
	}
	for _, k := range order {
		// The largest first, each to the rank that has least.
		numWriters := int(max(1, min(k.bytes/share, int64(len(k.holders)))))
		list := slices.Clone(k.parts)
		slices.SortStableFunc(list, func(a, b int) int { return cmp.Compare(parts[b].numBytes(), parts[a].numBytes()) })
		loads := make([]int64, numWriters)
		for _, i := range list {
			to := 0
			if numWriters > 1 {
				to = slices.Index(loads, slices.Min(loads))
			}
			loads[to] += parts[i].numBytes()
			if k.holders[to] == c.rank {
				mine = append(mine, i)
			}
		}
	}
	slices.Sort(mine)
	return mine, nil
}

// filesOf spreads the boxes of parts over files. A file has one box of a tensor at most, so
// that it can have the name of the tensor. mine has the numbers of the parts. If take is not nil,
// it says which boxes of all parts are wanted.
func filesOf(section string, frozen bool, parts []Part, mine []int, take func(p Part, b mesh.Box) bool) ([]filePlan, error) {
	if take != nil {
		mine = allRanks(len(parts))
	}
	var files []filePlan
	for _, i := range mine {
		p := parts[i]
		if p.Frozen != frozen && take == nil {
			continue
		}
		boxes, err := p.boxes()
		if err != nil {
			return nil, fmt.Errorf("checkpoint: %s: tensor %q: %w", section, p.Name, err)
		}
		if take != nil {
			boxes = slices.DeleteFunc(boxes, func(b mesh.Box) bool { return !take(p, b) })
		}
		for n, box := range boxes {
			if n == len(files) {
				files = append(files, filePlan{section: section, frozen: frozen})
			}
			info := safetensors.Info{Name: p.Name, DType: fileDTypes[p.Local.DType()], Shape: box.Shape}
			files[n].boxes = append(files[n].boxes, boxPlan{part: p, box: box, info: info})
		}
	}
	return files, nil
}

// nameFiles names this rank's files, given how many each rank writes of each section.
func nameFiles(files []filePlan, rank int, counts []map[string]int) {
	before, all := map[string]int{}, map[string]int{}
	for r, of := range counts {
		for section, n := range of {
			all[section] += n
			if r < rank {
				before[section] += n
			}
		}
	}
	for i := range files {
		f := &files[i]
		before[f.section]++
		f.name = fileName(f.section, before[f.section], all[f.section])
	}
}

// fileName returns the name of file i of n of a section, as Hugging Face's tools name shards.
func fileName(section string, i, n int) string {
	if n == 1 {
		return section + ".safetensors"
	}
	return fmt.Sprintf("%s-%05d-of-%05d.safetensors", section, i, n)
}

func countFiles(files []filePlan) map[string]int {
	counts := map[string]int{}
	for _, f := range files {
		counts[f.section]++
	}
	return counts
}
