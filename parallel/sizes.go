// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
)

// Sizes is how many ranks the axes of a mesh have, outermost first. A size of 0 is left out: it
// is 1, but for one axis, which takes what the others leave of the ranks. That is Replicate, or
// FSDP if Replicate is given.
type Sizes struct {
	PP        int // stages of a pipeline: ranks run parts of the model, one after the other
	Replicate int // copies of the model
	FSDP      int // ranks that share the parameters of a copy among themselves
	EP        int // ranks that share the experts
	CP        int // ranks that share each sequence
	TP        int // ranks that share each module
}

// SizesError says that the sizes of a mesh do not fit the number of ranks.
type SizesError struct {
	Sizes    Sizes
	NumRanks int
}

func (e *SizesError) Error() string {
	for _, a := range e.Sizes.axes() {
		if a.Size < 0 {
			return fmt.Sprintf("mesh: axis %s has the size %d: want at least 1, or 0 to leave it out", a.Name, a.Size)
		}
	}
	known := e.Sizes.product()
	var given []string
	for _, a := range e.Sizes.axes() {
		if a.Size > 0 {
			given = append(given, fmt.Sprintf("%s %d", a.Name, a.Size))
		}
	}
	rest := ""
	if known > 0 && e.NumRanks%known != 0 {
		rest = fmt.Sprintf(": %d %% %d = %d", e.NumRanks, known, e.NumRanks%known)
	}
	return fmt.Sprintf("mesh: %s = %s, and there are %s%s; change the sizes or the number of ranks, or leave replicate or fsdp out to have it follow",
		strings.Join(given, " × "), countRanks(known), countRanks(e.NumRanks), rest)
}

// axes returns the axes in their order, with the sizes that were given.
func (s Sizes) axes() []mesh.Axis {
	return []mesh.Axis{
		{Name: pipelineAxis, Size: s.PP},
		{Name: replicateAxis, Size: s.Replicate},
		{Name: shardAxis, Size: s.FSDP},
		{Name: expertAxis, Size: s.EP},
		{Name: contextAxis, Size: s.CP},
		{Name: tensorAxis, Size: s.TP},
	}
}

// product returns the number of ranks that the given sizes make.
func (s Sizes) product() int {
	n := 1
	for _, a := range s.axes() {
		n *= max(a.Size, 1)
	}
	return n
}

// solve returns the axes of more than one rank for so many ranks in all.
func (s Sizes) solve(numRanks int) ([]mesh.Axis, error) {
	known := s.product()
	free := &s.Replicate
	if s.Replicate != 0 {
		free = &s.FSDP
	}
	negative := slices.ContainsFunc(s.axes(), func(a mesh.Axis) bool { return a.Size < 0 })
	if negative || numRanks%known != 0 || *free != 0 && known != numRanks {
		return nil, &SizesError{s, numRanks}
	}
	if *free == 0 {
		*free = numRanks / known
	}
	return slices.DeleteFunc(s.axes(), func(a mesh.Axis) bool { return a.Size <= 1 }), nil
}

// NewMesh arranges all ranks of g in a mesh for [Parallelize]. Axes of one rank are left out. Ranks
// of one node follow each other, so that the axes which communicate most, the last ones, stay
// within a node where they fit. Every rank calls it with the same sizes. If they do not give the
// number of ranks, the error is a [*SizesError]. Close the mesh when nothing uses it any more.
func NewMesh(ctx context.Context, g *dist.Group, s Sizes) (*mesh.Mesh, error) {
	axes, err := s.solve(g.Size())
	if err != nil {
		return nil, err
	}
	if len(axes) == 0 { // of one rank
		axes = []mesh.Axis{{Name: replicateAxis, Size: 1}}
	}
	if ranks := mesh.NodeOrder(g); !slices.IsSorted(ranks) {
		return mesh.Over(ctx, g, ranks, axes...)
	}
	return mesh.New(ctx, g, axes...)
}

// Sampler returns which of the ranks with samples of their own this rank is, from 0, and how many
// there are: by it a program chooses the samples of a step. Ranks that differ on pp, cp or tp alone
// get the same number, because they share the work on the same samples.
func Sampler(m *mesh.Mesh) (sampler, numSamplers int) {
	numSamplers = 1
	at := m.Coordinate()
	for i, a := range m.Axes() {
		for _, k := range knownAxes {
			if k.name == a.Name && k.samples {
				sampler, numSamplers = sampler*a.Size+at[i], numSamplers*a.Size
			}
		}
	}
	return sampler, numSamplers
}
