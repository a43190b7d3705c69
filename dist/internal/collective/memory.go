// SPDX-License-Identifier: Apache-2.0

package collective

// Memory is the bytes that a plan's elements stand for.
type Memory struct {
	out, in, work []byte
	inAt, workAt  int // the first bytes of input and working memory
	size          int
	sources       [][]byte // scratch
}

// Map returns the memory for a run of the plan with elements of size bytes.
// Where input and output are the same memory, the input is not used.
func (p *Plan) Map(m *Memory, in, out, work []byte, size int) {
	m.out, m.in, m.work, m.size = out, in, work, size
	m.inAt, m.workAt = p.NumOut*size, (p.NumOut+p.NumIn)*size
}

// At returns the bytes of a range.
func (m *Memory) At(r Range) []byte {
	lo, hi := r.Lo*m.size, r.Hi*m.size
	switch {
	case hi <= m.inAt:
		return m.out[lo:hi]
	case hi <= m.workAt:
		return m.in[lo-m.inAt : hi-m.inAt]
	}
	return m.work[lo-m.workAt : hi-m.workAt]
}

// Do does a step. reduce may be nil where a plan has only copies.
func (m *Memory) Do(s *Step, reduce *Reduction) {
	to := m.At(s.Range)
	if s.Num == 1 {
		copy(to, m.At(s.source(0)))
		return
	}
	m.sources = m.sources[:0]
	for i := range s.Num {
		m.sources = append(m.sources, m.At(s.source(i)))
	}
	if s.Whole {
		reduce.All(to, m.sources)
		return
	}
	part := reduce.Partial()
	part.All(to, m.sources)
	if s.Finish {
		reduce.Finish(to)
	}
}

// Drop lets go of the memory.
func (m *Memory) Drop() {
	m.out, m.in, m.work = nil, nil, nil
	clear(m.sources)
}
