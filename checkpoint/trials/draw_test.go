// SPDX-License-Identifier: Apache-2.0

package trials

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/tensor"
)

var (
	numTrials = flag.Int("trials", 0, "how many trials each test makes; 0 is the sample of CI")
	oneTrial  = flag.Int("trial", -1, "the number of the only trial to make; -1 makes all")
)

// trials calls try with the numbers of the trials that a test makes.
func trials(t *testing.T, sample int, try func(i int) error) {
	t.Helper()
	if testing.Short() {
		sample = (sample + 3) / 4
	}
	n := sample
	if *numTrials > 0 {
		n = *numTrials
	}
	first := 0
	if *oneTrial >= 0 {
		first, n = *oneTrial, *oneTrial+1
	}
	numWrong := 0
	for i := first; i < n; i++ {
		if err := try(i); err != nil {
			t.Errorf("trial %d: %v\n\trepeat it by -run '^%s$' -trial %d", i, err, t.Name(), i)
			if numWrong++; numWrong == 10 {
				t.Fatal("ten trials are enough")
			}
		}
	}
	t.Logf("%d trials, %d wrong", n-first, numWrong)
}

// spawn runs ranks with a limit on their time. Without ranks it runs main alone, without a
// group.
func spawn(t *testing.T, n int, main func(ctx context.Context, g *dist.Group) error) error {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errors.New("the test's limit"))
	defer cancel()
	if n == 0 {
		return main(ctx, nil)
	}
	return dist.Spawn(ctx, n, main)
}

func pick[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

func chance(r *rand.Rand, p float64) bool { return r.Float64() < p }

func random(seed uint64, text string) *rand.Rand {
	h := uint64(14695981039346656037)
	for _, b := range []byte(text) {
		h = (h ^ uint64(b)) * 1099511628211
	}
	return rand.New(rand.NewPCG(seed, h))
}

// tensorDraw is a tensor of a state. All its bytes are drawn.
type tensorDraw struct {
	section, name string
	dtype         tensor.DType
	shape         []int
	frozen        bool
	tied          int // the number of the tensor before it with the same memory, -1 for none
	data          []byte
}

var dtypes = []tensor.DType{
	tensor.Float32, tensor.Float32, tensor.BFloat16, tensor.Float64, tensor.Float16, tensor.Int64, tensor.Int32, tensor.Int8, tensor.Uint8, tensor.Bool,
}

// drawTensors draws the tensors of two sections.
func drawTensors(r *rand.Rand) []tensorDraw {
	var out []tensorDraw
	for i := range 1 + r.IntN(12) {
		d := tensorDraw{section: checkpoint.Model, name: fmt.Sprintf("block.%d.%s", i, pick(r, "weight", "bias", "a b", "größe", "x/y", "..", `quo"te`)), dtype: pick(r, dtypes...), tied: -1}
		most := 6000
		for range pick(r, 0, 1, 1, 2, 2, 2, 3, 4) {
			n := pick(r, 0, 1, 2, 3, 4, 5, 6, 7, 8, 8, 12, 16, 33, 33, 64, 1009)
			if n > most {
				n = 1 + r.IntN(min(3, most))
			}
			most /= max(n, 1)
			d.shape = append(d.shape, n)
		}
		if d.frozen = chance(r, 0.2); !d.frozen && chance(r, 0.4) {
			d.section = checkpoint.Optimizer
		}
		d.data = make([]byte, numElems(d.shape)*d.dtype.Size())
		for j := range d.data {
			if d.data[j] = byte(r.Uint32()); d.dtype == tensor.Bool {
				d.data[j] &= 1
			}
		}
		if k := r.IntN(i + 1); k < i && chance(r, 0.15) && out[k].tied < 0 {
			d = out[k]
			d.name, d.tied = fmt.Sprintf("tied.%d", i), k
		}
		out = append(out, d)
	}
	return out
}

func numElems(shape []int) int {
	n := 1
	for _, s := range shape {
		n *= s
	}
	return n
}

var axisNames = []string{"pp", "replicate", "fsdp", "ep", "cp", "tp"}

// drawAxes draws a mesh of up to 8 ranks, without axes for a state that lies whole on one
// rank.
func drawAxes(r *rand.Rand) []mesh.Axis {
	n := pick(r, 1, 2, 2, 3, 4, 4, 5, 6, 6, 7, 8, 8, 8)
	if n == 1 && chance(r, 0.5) {
		return nil
	}
	var axes []mesh.Axis
	for i, name := range axisNames {
		var sizes []int
		for k := 1; k <= n; k++ {
			if n%k == 0 {
				sizes = append(sizes, k)
			}
		}
		size := pick(r, sizes...)
		if i == len(axisNames)-1 {
			size = n
		}
		if n /= size; size > 1 || chance(r, 0.1) {
			axes = append(axes, mesh.Axis{Name: name, Size: size})
		}
	}
	if len(axes) == 0 {
		axes = []mesh.Axis{{Name: "fsdp", Size: 1}}
	}
	return axes
}

func numRanks(axes []mesh.Axis) int {
	n := 1
	for _, a := range axes {
		n *= a.Size
	}
	return n
}

// lie is how a tensor lies on a mesh.
type lie struct {
	placements []mesh.Placement // nil: every rank has the whole, and no mesh is given
	stages     []int            // the places on the axis pp that have it; nil is all
	view       int              // 0: dense memory; 1: a part of larger memory; 2: transposed
}

// drawLie draws how a tensor lies. A tensor of stages has the mesh's first axis.
func drawLie(r *rand.Rand, shape []int, axes []mesh.Axis) lie {
	l := lie{view: pick(r, 0, 0, 0, 1, 2)}
	if len(axes) == 0 || chance(r, 0.1) {
		return l
	}
	sizes := make([]int, len(axes))
	for i, a := range axes {
		sizes[i] = a.Size
	}
	for try := 0; ; try++ {
		l.placements = make([]mesh.Placement, len(axes))
		for i := range axes {
			if len(shape) > 0 && try < 20 && chance(r, 0.6) {
				l.placements[i] = mesh.StridedShard(r.IntN(len(shape)), pick(r, 1, 1, 1, 2, 3, 4, 6))
			}
		}
		if axes[0].Name == "pp" && axes[0].Size > 1 && chance(r, 0.4) {
			l.placements[0] = mesh.Replicate()
			l.stages = r.Perm(axes[0].Size)[:1+r.IntN(axes[0].Size)]
		} else {
			l.stages = nil
		}
		if mesh.Check(shape, sizes, l.placements) == nil {
			return l
		}
	}
}

// layout returns the layout of a tensor on a rank's mesh, and whether this rank has nothing of it.
func (l lie) layout(shape []int, m *mesh.Mesh) (_ mesh.Layout, away bool) {
	if l.placements == nil {
		return mesh.Layout{}, false
	}
	return mesh.Layout{Mesh: m, Shape: shape, Placements: l.placements}, l.stages != nil && !slices.Contains(l.stages, m.Coordinate()[0])
}

// cut returns the bytes that a rank holds of a tensor. It moves one element after the other.
func (d tensorDraw) cut(l mesh.Layout) (shape []int, data []byte, err error) {
	if l.Mesh == nil {
		return d.shape, d.data, nil
	}
	if shape, err = l.LocalShape(); err != nil {
		return nil, nil, err
	}
	boxes, err := l.Boxes()
	if err != nil {
		return nil, nil, err
	}
	size := d.dtype.Size()
	data = make([]byte, numElems(shape)*size)
	for _, b := range boxes {
		eachElement(b, d.shape, shape, func(at, local int) { copy(data[local*size:][:size], d.data[at*size:]) })
	}
	return shape, data, nil
}

// eachElement calls fn with the places of a box's elements in the whole and in the local
// tensor.
func eachElement(b mesh.Box, whole, local []int, fn func(at, local int)) {
	offset := make([]int, len(b.Shape))
	for range numElems(b.Shape) {
		at, own := 0, 0
		for d := range offset {
			at, own = at*whole[d]+b.Start[d]+offset[d], own*local[d]+b.LocalStart[d]+offset[d]
		}
		fn(at, own)
		for d := len(offset) - 1; d >= 0; d-- {
			if offset[d]++; offset[d] < b.Shape[d] {
				break
			}
			offset[d] = 0
		}
	}
}

// memory returns a tensor with the given bytes, in dense memory or as a view.
func memory(dtype tensor.DType, shape []int, data []byte, view int) *tensor.Tensor {
	t := tensor.Empty(dtype, shape...)
	copy(t.Buffer().Data, data)
	if len(shape) == 0 || len(data) == 0 {
		return t
	}
	out := t
	switch view {
	case 1:
		last := len(shape) - 1
		wide := slices.Clone(shape)
		wide[last] += 3
		out = tensor.Empty(dtype, wide...).Narrow(last, 1, shape[last])
	case 2:
		if len(shape) < 2 {
			return t
		}
		turned := slices.Clone(shape)
		turned[0], turned[1] = turned[1], turned[0]
		out = tensor.Empty(dtype, turned...).Transpose(0, 1)
	default:
		return t
	}
	out.CopyFrom(t)
	return out
}

// spoil overwrites a tensor.
func spoil(t *tensor.Tensor) {
	shape := t.Shape()
	t.CopyFrom(memory(t.DType(), shape, bytes.Repeat([]byte{1}, numElems(shape)*t.DType().Size()), 0))
}

// held is what a rank has of the tensors of a state.
type held struct {
	draws []tensorDraw
	parts []checkpoint.Part
	want  [][]byte
}

// hold puts together what a rank has of all tensors. Without filled the memory holds something else.
func hold(draws []tensorDraw, lies []lie, m *mesh.Mesh, filled bool) (h held, err error) {
	for i, d := range draws {
		l, away := lies[i].layout(d.shape, m)
		shape, data, err := d.cut(l)
		if err != nil {
			return h, fmt.Errorf("%s: %w", d.name, err)
		}
		p := checkpoint.Part{Name: d.name, Away: away, Frozen: d.frozen}
		p.Layout = l
		switch {
		case away:
			data = nil
			p.Local = tensor.New(tensor.Meta, d.dtype, shape...)
		case d.tied >= 0:
			p.Local = h.parts[d.tied].Local
		case filled:
			p.Local = memory(d.dtype, shape, data, lies[i].view)
		default:
			p.Local = memory(d.dtype, shape, bytes.Repeat([]byte{1}, len(data)), lies[i].view)
		}
		h.draws, h.parts, h.want = append(h.draws, d), append(h.parts, p), append(h.want, data)
	}
	return h, nil
}

// drawLies draws how all tensors lie on a mesh. Tied tensors lie alike.
func drawLies(seed uint64, draws []tensorDraw, axes []mesh.Axis, what string) []lie {
	var out []lie
	for i, d := range draws {
		if d.tied >= 0 {
			out = append(out, out[d.tied])
			continue
		}
		out = append(out, drawLie(random(seed, fmt.Sprint(what, i)), d.shape, axes))
	}
	return out
}

// sections returns the parts by section.
func (h held) sections() map[string][]checkpoint.Part {
	out := make(map[string][]checkpoint.Part)
	for i, p := range h.parts {
		s := h.draws[i].section
		out[s] = append(out[s], p)
	}
	return out
}

// compare says which tensors differ from what was drawn.
func (h held) compare() error {
	var wrong []string
	for i, p := range h.parts {
		if p.Away {
			continue
		}
		got := p.Local.Contiguous().Buffer().Data
		if !bytes.Equal(got[:len(h.want[i])], h.want[i]) {
			wrong = append(wrong, fmt.Sprintf("%s %q %v%v as %v", h.draws[i].section, p.Name, h.draws[i].dtype, h.draws[i].shape, p.Placements))
		}
	}
	if len(wrong) > 0 {
		return fmt.Errorf("other values than were saved: %s", strings.Join(wrong, "; "))
	}
	return nil
}

// drawValue draws a JSON value.
func drawValue(r *rand.Rand, depth int) any {
	switch k := r.IntN(8); {
	case k == 0:
		return nil
	case k == 1:
		return chance(r, 0.5)
	case k == 2:
		return r.Int64() - r.Int64()
	case k == 3:
		return r.NormFloat64() * 1e6
	case k == 4 || depth == 0:
		return pick(r, "", "text", "<&>", "\u2028 ü \x00", strings.Repeat("long ", 200))
	case k < 7:
		out := []any{}
		for range r.IntN(4) {
			out = append(out, drawValue(r, depth-1))
		}
		return out
	}
	out := map[string]any{}
	for i := range r.IntN(4) {
		out[fmt.Sprint("key ", i)] = drawValue(r, depth-1)
	}
	return out
}

// drawValues draws the values of a state.
func drawValues(r *rand.Rand) map[string]any {
	out := map[string]any{}
	for i := range r.IntN(4) {
		out[fmt.Sprint("value", i)] = drawValue(r, 3)
	}
	return out
}

// pointers returns where the values of a state are loaded, and compares them afterwards.
func pointers(values map[string]any) (into map[string]any, compare func() error) {
	into = make(map[string]any)
	for name := range values {
		into[name] = new(json.RawMessage)
	}
	return into, func() error {
		for name, v := range values {
			want, err := json.Marshal(v)
			if err != nil {
				return err
			}
			var got bytes.Buffer
			if err := json.Compact(&got, *into[name].(*json.RawMessage)); err != nil {
				return fmt.Errorf("the value %q: %w", name, err)
			}
			var a, b any // the order of keys and escapes may differ
			if err := errors.Join(json.Unmarshal(want, &a), json.Unmarshal(got.Bytes(), &b)); err != nil {
				return err
			}
			x, _ := json.Marshal(a)
			y, _ := json.Marshal(b)
			if !bytes.Equal(x, y) {
				return fmt.Errorf("the value %q is %s, and %s was saved", name, got.Bytes(), want)
			}
		}
		return nil
	}
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
