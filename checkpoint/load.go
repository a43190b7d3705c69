// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/cohort-ml/cohort/checkpoint/safetensors"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/tensor"
)

const (
	// numReaders is how many reads of a rank are under way at the same time.
	numReaders = 16
	// pieceBytes is about how much of a box is one read of a goroutine.
	pieceBytes = 8 << 20
	// maxCopies is how many bytes a load needs beside the tensors, for those that cannot be
	// filled in place; one tensor may be larger.
	maxCopies = 256 << 20
)

// Loaded is what [Load] has loaded.
type Loaded struct {
	Name       string // of the checkpoint, empty for none
	Step       int
	Ranks      int             // that saved it
	PassedOver []*DamagedError // on rank 0: newer ones
	// Stays has, on rank 0, the steps of those that keep their names, because rank 0 reads them as
	// they were saved. The run will come to these steps again: a save of one is an error of
	// [io/fs.ErrExist] unless [WithReplace] names it.
	Stays []int
	// RankValues says whether values of the ranks were loaded. They are not if another number
	// of ranks saved.
	RankValues     bool
	Missing, Extra []string // tensors and values, with [WithPartial]
}

// Load fills a state from the newest checkpoint that is good, and returns its step. All ranks of
// g call it; nil stands for one rank. Each rank reads what it needs of the tensors, whatever
// ranks and meshes saved them, and compares it with its checksums. The step is 0 where there is
// no checkpoint; nothing is changed then.
//
// Parts of a newer step that ranks have written alone ([SavePart]) are made a checkpoint first, if
// they are whole. A checkpoint that is damaged, for whichever rank, is passed over by all, and they take the one
// before it. When they have loaded that, rank 0 tells of the damaged ones ([WithNotice]) and sets
// them aside. If all are damaged, the error is a [*DamagedError] and they stay where they are. If
// the state differs from what was saved, the error is a [*StateDictError] and nothing is changed;
// see also [WithPartial]. After another error, tensors may have any values. A rank waits at most a
// minute after the end of ctx, also for a file system that hangs; what hangs may still write into its
// tensors.
func Load(ctx context.Context, g *dist.Group, from storage.Storage, s State, opts ...LoadOption) (step int, err error) {
	l := &load{loading: loadingOf(opts), crew: crewOf(g), from: from, state: s, opts: opts, skip: map[int]bool{}, other: map[*DamagedError]bool{}}
	if err := l.agree(ctx, errors.Join(context.Cause(ctx), s.check())); err != nil {
		return 0, l.fail(err)
	}
	for {
		ck, err := l.next(ctx)
		if ck == nil || err != nil {
			return 0, l.fail(err)
		}
		again, err := l.try(ctx, ck)
		if err != nil {
			return 0, l.fail(err)
		}
		if !again {
			return ck.Step, nil
		}
	}
}

// load is one load under way.
type load struct {
	loading
	crew
	from  storage.Storage
	state State
	opts  []LoadOption

	skip   map[int]bool           // steps whose checkpoints are damaged
	passed []*DamagedError        // on rank 0
	other  map[*DamagedError]bool // those of passed that rank 0 has not seen itself
}

func (l *load) fail(err error) error {
	if err == nil || strings.HasPrefix(err.Error(), "checkpoint: ") {
		return err
	}
	return fmt.Errorf("checkpoint: loading from %s: %w", l.from, err)
}

// next opens, on all ranks, the newest checkpoint that rank 0 finds. It is nil if there is none.
func (l *load) next(ctx context.Context) (*Checkpoint, error) {
	type found struct {
		Name    string
		None    bool
		Err     rankReport
		Damaged []*DamagedError // all that there are
	}
	var out found
	var ck *Checkpoint
	var err error
	if l.rank == 0 {
		if len(l.skip) == 0 {
			CompleteNewest(ctx, l.from, l.notice)
		}
		var damaged []*DamagedError
		type pair struct {
			ck      *Checkpoint
			damaged []*DamagedError
		}
		var p pair
		p, err = unstuck(ctx, l.crew, func() (p pair, err error) {
			p.ck, p.damaged, err = newest(ctx, l.from, false, l.skip)
			return p, err
		})
		ck, damaged = p.ck, p.damaged
		if err == nil || errors.Is(err, ErrNone) || len(damaged) > 0 {
			for _, d := range damaged {
				l.pass(d)
			}
			if err != nil {
				err = noneGood(l.from, l.passed)
				for _, d := range l.passed {
					out.Damaged = append(out.Damaged, d.plain())
				}
			}
		}
		if errors.Is(err, ErrNone) {
			out.None, err = true, nil
		}
		if out.Err = reportOf(err); ck != nil {
			out.Name = ck.Name
		}
	}
	out, told := broadcast(ctx, l.crew, out)
	switch {
	case err != nil:
		return nil, err
	case told != nil:
		return nil, told
	case len(out.Damaged) > 0:
		return nil, noneGood(l.from, out.Damaged)
	case !out.Err.isNone():
		return nil, out.Err.of(0)
	case out.None:
		return nil, nil
	}
	if l.rank != 0 {
		ck, err = unstuck(ctx, l.crew, func() (*Checkpoint, error) { return open(ctx, l.from, out.Name) })
	}
	return ck, l.together(ctx, err, nil)
}

// plain returns a copy that can be sent to other ranks: an error has no JSON.
func (e *DamagedError) plain() *DamagedError {
	d := *e
	if d.Err != nil {
		d.Problem, d.Err = d.Problem+": "+d.Err.Error(), nil
	}
	return &d
}

// pass notes that a checkpoint is damaged.
func (l *load) pass(d *DamagedError) {
	l.passed = append(l.passed, d)
	if step, ok := ParseStep(d.Path[strings.LastIndexByte(d.Path, '/')+1:]); ok {
		l.skip[step] = true
	}
}

// together makes an error of any rank an error of all. Damage is what damaged is called with, if it
// is not nil, and no error then.
func (l *load) together(ctx context.Context, err error, damaged func(d *DamagedError)) error {
	type report struct {
		Err     rankReport
		Damaged *DamagedError
	}
	mine := report{Err: reportOf(err)}
	if errors.As(err, &mine.Damaged) {
		mine.Damaged = mine.Damaged.plain()
	}
	reports, gathered := allGather(ctx, l.crew, mine)
	if gathered != nil {
		return errors.Join(err, gathered)
	}
	if damaged != nil {
		for _, r := range reports {
			if r.Damaged != nil {
				damaged(r.Damaged)
				return nil
			}
		}
	}
	if err != nil {
		return err
	}
	for rank, r := range reports {
		if err := r.Err.of(rank); err != nil {
			return err
		}
	}
	return nil
}

// try loads a checkpoint. again is true if it is damaged and there may be an older one.
func (l *load) try(ctx context.Context, ck *Checkpoint) (again bool, err error) {
	// All is compared before anything is read.
	if err := l.together(ctx, ck.match(l.state, l.opts), nil); err != nil {
		return false, err
	}
	loaded, err := unstuck(ctx, l.crew, func() (Loaded, error) { return ck.load(l.crew, l.state, l.opts) })
	isMine := errors.As(err, new(*DamagedError))
	damaged := func(d *DamagedError) {
		l.pass(d)
		l.other[d] = !isMine
		again = true
	}
	if ck.Name == "" { // the storage is this one checkpoint
		damaged = nil
	}
	if err := l.together(ctx, err, damaged); err != nil || again {
		return again, err
	}
	if l.rank == 0 {
		for _, d := range l.passed {
			if step, stays := l.setAside(context.WithoutCancel(ctx), d); stays {
				loaded.Stays = append(loaded.Stays, step)
			}
		}
	}
	if l.loaded != nil {
		loaded.PassedOver = l.passed
		*l.loaded = loaded
	}
	return false, nil
}

// setAside tells of a damaged checkpoint and gives it another name. If that fails, it stays and
// is passed over again. It also stays if only another rank sees the damage: that rank's machine
// may be what is wrong. stays is true then.
func (l *load) setAside(ctx context.Context, d *DamagedError) (step int, stays bool) {
	text := "passing over a damaged checkpoint: " + d.Error()
	name := d.Path[strings.LastIndexByte(d.Path, '/')+1:]
	step, ok := ParseStep(name)
	if stays = ok && l.other[d] && l.isWhole(ctx, name, d.File); stays {
		text += fmt.Sprintf(" (rank 0 reads it as it was saved, so it stays: look at the disk or the mount of the rank that does not; a save of step %d will not replace it unless it is told to)", step)
	} else if ok {
		if err := l.from.SetAside(ctx, name); err != nil {
			text += fmt.Sprintf(" (it cannot be set aside: %v)", err)
		}
	}
	l.notice(text)
	return step, stays
}

// isWhole says whether this rank finds no damage in a file of a checkpoint.
func (l *load) isWhole(ctx context.Context, name, file string) bool {
	c, err := open(ctx, l.from, name)
	if err != nil {
		return false
	}
	i := slices.IndexFunc(c.Files, func(f FileInfo) bool { return f.Name == file })
	if i < 0 {
		return true // the manifest, or the list of files
	}
	return c.verifyFile(ctx, c.Files[i], c.boxesByFile()[file], make([]byte, chunkBytes), firstDamage, func(int) {}) == nil
}

// match compares a state with the checkpoint, and reads nothing.
func (c *Checkpoint) match(s State, opts []LoadOption) error {
	l := loadingOf(opts)
	l.loaded = nil
	for _, name := range s.sectionNames() {
		if c.manifest.Section(name) == nil && l.partial {
			continue
		}
		src, err := c.Source(name)
		if err != nil {
			return err
		}
		if _, err := match(src, s.Sections[name], l); err != nil {
			return err
		}
	}
	return nil
}

// load fills a state from this checkpoint, on this rank.
func (c *Checkpoint) load(crew crew, s State, opts []LoadOption) (Loaded, error) {
	loaded := Loaded{Name: c.Name, Step: c.Step, Ranks: c.manifest.Ranks}
	l := loadingOf(opts)
	opts = append(slices.Clone(opts), WithLoaded(&loaded))
	for _, name := range s.sectionNames() {
		if c.manifest.Section(name) == nil && l.partial {
			loaded.Missing = append(loaded.Missing, name)
			continue
		}
		if err := c.LoadParts(name, s.Sections[name], opts...); err != nil {
			return loaded, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Values)) {
		if !c.HasValue(name) && l.partial {
			loaded.Missing = append(loaded.Missing, name)
			continue
		}
		if err := c.Value(name, s.Values[name]); err != nil {
			return loaded, err
		}
	}
	if of := c.manifest.RankValues; len(s.RankValues) > 0 && c.manifest.Ranks == crew.size && len(of) == crew.size &&
		!slices.ContainsFunc(of, func(v map[string]rawJSON) bool { return len(v) == 0 }) {
		missing, err := decodeValues(c.manifest.RankValues[crew.rank], s.RankValues)
		if err != nil {
			return loaded, fmt.Errorf("checkpoint: %s: %w", c.Path, err)
		}
		if len(missing) > 0 && !l.partial {
			return loaded, fmt.Errorf("checkpoint: %s has no values %q of rank %d", c.Path, missing, crew.rank)
		}
		loaded.Missing = append(loaded.Missing, missing...)
		loaded.RankValues = true
	}
	return loaded, nil
}

// LoadParts is [Checkpoint.LoadParts] from any source.
func LoadParts(f Source, parts []Part, opts ...LoadOption) error {
	list, err := describe(f.Name(), parts)
	if err != nil {
		return err
	}
	from, err := match(f, list, loadingOf(opts))
	if err != nil {
		return err
	}
	stored := make(map[string]safetensors.Info)
	for _, info := range f.Infos() {
		stored[info.Name] = info
	}
	p := &partReader{src: f, pieces: make(chan struct{}, numReaders), copies: newBudget(maxCopies)}
	work := newWorkers(context.Background(), numReaders)
	for i, part := range list {
		info, ok := stored[part.Name]
		if part.Away || !ok {
			continue
		}
		work.Go(func() error { return p.load(work.ctx, part, info, from[i]) })
	}
	return work.Wait()
}

// partReader fills parts from a source, by several goroutines.
type partReader struct {
	src    Source
	pieces chan struct{} // slots for reads, over all parts
	copies *budget
	finish sync.Mutex // held while tensors are converted
}

// load fills a part from a tensor that is of a dtype in the source.
func (r *partReader) load(ctx context.Context, p Part, info safetensors.Info, from tensor.DType) error {
	dense, dev := p.Local, p.Local.Device()
	if !tensor.CPUSees(dev) {
		dev = tensor.CPU()
	}
	if !dense.IsContiguous() || from != dense.DType() || dev != dense.Device() {
		defer r.copies.take(int64(dense.NumElems() * from.Size()))()
		dense = tensor.New(dev, from, dense.Shape()...)
		defer dense.Free()
	}
	err := r.read(ctx, p, info, dense.Buffer().Data)
	r.finish.Lock()
	defer r.finish.Unlock()
	dense.MarkWritten()
	if err != nil {
		return err
	}
	if from == tensor.Bool {
		for at, b := range dense.Buffer().Data {
			if b > 1 {
				return fmt.Errorf("checkpoint: %s: tensor %q: element %d is %d, which is no bool", r.src.Name(), p.Name, at, b)
			}
		}
	}
	if dense != p.Local {
		p.Local.CopyFrom(dense.To(p.Local.DType()).ToDevice(p.Local.Device()))
	}
	runtime.KeepAlive(dense)
	return nil
}

// read reads the boxes of a part into data, which is dense and has the part's local shape.
func (r *partReader) read(ctx context.Context, p Part, info safetensors.Info, data []byte) error {
	boxes, err := p.boxes()
	if err != nil {
		return err
	}
	work := newWorkers(ctx, numReaders)
	size, local := info.DType.NumBits()/8, p.Local.Shape()
	for _, whole := range boxes {
		for _, b := range pieces(whole, size) {
			work.Go(func() error {
				r.pieces <- struct{}{}
				defer func() { <-r.pieces }()
				return r.readPiece(info, b, local, size, data)
			})
		}
	}
	return work.Wait()
}

// readPiece reads a box into its place in data, which has the shape local.
func (r *partReader) readPiece(info safetensors.Info, b mesh.Box, local []int, size int, data []byte) error {
	zeros := make([]int, len(b.Shape))
	numBytes, first, numStretches := numElems(b.Shape)*size, 0, 0
	place := func(each func(from, to, n int) error) error {
		return stretches(b.Shape, b.Shape, zeros, local, b.LocalStart, size, each)
	}
	place(func(_, to, _ int) error {
		if numStretches == 0 {
			first = to
		}
		if numStretches++; numStretches > 1 {
			return errScattered
		}
		return nil
	})
	if numStretches == 1 {
		return ReadBox(r.src, info, b.Start, b.Shape, data[first:first+numBytes])
	}
	dense := make([]byte, numBytes)
	if err := ReadBox(r.src, info, b.Start, b.Shape, dense); err != nil {
		return err
	}
	return place(func(from, to, n int) error {
		copy(data[to:to+n], dense[from:from+n])
		return nil
	})
}

var errScattered = errors.New("more than one stretch")

// pieces cuts a box along its first dim of more than one element into boxes of about pieceBytes.
func pieces(b mesh.Box, size int) []mesh.Box {
	numBytes := numElems(b.Shape) * size
	along := slices.IndexFunc(b.Shape, func(n int) bool { return n > 1 })
	if numBytes <= pieceBytes || along < 0 {
		return []mesh.Box{b}
	}
	rows := max(1, pieceBytes/(numBytes/b.Shape[along]))
	var list []mesh.Box
	for at := 0; at < b.Shape[along]; at += rows {
		piece := mesh.Box{Start: slices.Clone(b.Start), Shape: slices.Clone(b.Shape), LocalStart: slices.Clone(b.LocalStart)}
		piece.Start[along] += at
		piece.LocalStart[along] += at
		piece.Shape[along] = min(rows, b.Shape[along]-at)
		list = append(list, piece)
	}
	return list
}
