// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/dist"
)

// SaveOption changes how a checkpoint is saved.
type SaveOption func(*saveOptions)

type saveOptions struct {
	keep     Retention
	share    int64
	together []string
	pace     func(n int) error
	notice   func(text string)
	replace  []int
}

// replaces says whether the checkpoint takes the place of a good one of its step.
func (o *saveOptions) replaces(step int) bool { return o.keep.Only || slices.Contains(o.replace, step) }

func saveOptionsOf(opts []SaveOption) saveOptions {
	o := saveOptions{share: shareBytes, notice: func(string) {}}
	for _, opt := range opts {
		opt(&o)
	}
	return o
}

// WithRetention says which older checkpoints stay once the new one is there. Without it all
// stay.
func WithRetention(keep Retention) SaveOption { return func(o *saveOptions) { o.keep = keep } }

// WithShare sets from how many bytes on a further rank takes a share of what several ranks hold.
// It is 16 MiB if not set: smaller shares cost more time than they save.
func WithShare(bytes int64) SaveOption { return func(o *saveOptions) { o.share = max(1, bytes) } }

// WithReplace names steps whose checkpoints a save replaces, also good ones: for a run that was set
// back before them, see [Loaded].
func WithReplace(steps ...int) SaveOption {
	return func(o *saveOptions) { o.replace = append(o.replace, steps...) }
}

// WithTogether names sections whose whole tensors one rank writes into one file, which other
// programs want under one name.
func WithTogether(sections ...string) SaveOption {
	return func(o *saveOptions) { o.together = append(o.together, sections...) }
}

// Save makes the checkpoint of a step. All ranks of g call it; nil stands for one rank. Each
// rank writes its own boxes, and of what several ranks hold its share. The checkpoint is there
// whole or, after any failure, not at all; [SaveError.Doubt] says where a rank does not know which.
//
// An error of a rank is an error of all: the rank's own is as it was, and the others have one
// that names the rank. A step that is there already is an error that wraps [io/fs.ErrExist]; a
// damaged one is set aside. The error is a [*storage.BusyError] while another save is under way
// there, else a [*SaveError]. The end of ctx on any rank stops the save; once it is committed,
// the save counts. A rank waits at most a minute after that end, also for a file system that hangs,
// and no operation of g waits longer than its timeout. The tensors must not change until Save returns; [Saver] copies them.
func Save(ctx context.Context, g *dist.Group, to storage.Storage, step int, s State, opts ...SaveOption) error {
	v := &save{saveOptions: saveOptionsOf(opts), crew: crewOf(g), to: to, step: step, state: s}
	files, err := v.plan(ctx)
	if err != nil {
		return err
	}
	return v.run(ctx, files)
}

// save is one save under way.
type save struct {
	saveOptions
	crew
	to    storage.Storage
	step  int
	state State

	stage, folder string     // see storage.Storage.Stage
	alone         bool       // no other rank takes part, see SavePart
	beside        bool       // training goes on meanwhile
	there         []FileInfo // files that other ranks have written; of SavePart
	damaged       bool       // a damaged checkpoint is in the place of the new one
	committed     bool
	doubt         bool    // whether it is committed is not known
	links         *linker // nil where there is nothing to link
}

func (v *save) fail(op string, err error) error {
	if err == nil {
		return nil
	}
	var done *SaveError
	if errors.As(err, &done) || isBusy(err) {
		return err
	}
	return &SaveError{Where: v.to.String(), Step: v.step, Op: op, Committed: v.committed, Doubt: v.doubt, Err: err}
}

func (v *save) name() string { return StepName(v.step) }

// plan makes sure that all ranks save the same, and says which files this one writes. The files
// have no names yet.
func (v *save) plan(ctx context.Context) ([]filePlan, error) {
	type hello struct {
		Hash  uint64
		Step  int
		Parts int
		Away  bool
		Err   rankReport
	}
	parts := v.state.parts()
	mine := hello{Step: v.step, Parts: len(parts)}
	err := context.Cause(ctx)
	if err == nil && v.step < 0 {
		err = errors.New("a step cannot be negative")
	}
	if err == nil {
		err = v.state.check()
	}
	if err == nil {
		mine.Hash = v.state.hash()
		for _, p := range parts {
			mine.Away = mine.Away || p.Away
		}
	}
	mine.Err = reportOf(err)
	// Also a rank that has an error, or whose context has ended, tells the others.
	all, gathered := allGather(ctx, v.crew, mine)
	if err = errors.Join(err, gathered); err != nil {
		return nil, v.fail("compare", err)
	}
	someAway := false
	for r, other := range all {
		switch {
		case !other.Err.isNone():
			err = other.Err.of(r)
		case other.Step != all[0].Step:
			err = fmt.Errorf("rank %d saves step %d, and rank 0 step %d: save the same step on all ranks", r, other.Step, all[0].Step)
		case other.Parts != all[0].Parts || other.Hash != all[0].Hash:
			err = fmt.Errorf("rank %d saves other tensors (%d) than rank 0 (%d): list the same names, dtypes and shapes on all ranks, in the same order", r, other.Parts, all[0].Parts)
		}
		if err != nil {
			return nil, v.fail("compare", err)
		}
		someAway = someAway || other.Away
	}
	var away isAway
	if someAway {
		if away, err = v.exchangeAway(ctx, parts); err != nil {
			return nil, v.fail("compare", err)
		}
	}
	files, err := v.deal(v.state, away, v.share, v.together)
	if err := v.agree(ctx, err); err != nil {
		return nil, v.fail("compare", err)
	}
	return files, nil
}

// run writes and commits what plan has found.
func (v *save) run(ctx context.Context, files []filePlan) error {
	release, err := v.begin(ctx, files)
	if release != nil {
		defer release()
	}
	if err != nil {
		return err
	}
	own, err := unstuck(ctx, v.crew, func() (*Manifest, error) {
		if v.beside {
			yieldThread()
		}
		return v.write(ctx, files)
	})
	err = v.fail("write", err)
	type report struct {
		Err     rankReport
		HasPart bool
	}
	reports, gathered := allGather(ctx, v.crew, report{reportOf(err), own != nil && own.isWorthAPart()})
	err = v.reported(err, gathered)
	hasPart := make([]bool, v.size)
	for r, other := range reports {
		if hasPart[r] = other.HasPart; err == nil {
			err = other.Err.of(r)
		}
	}
	if err != nil {
		v.giveUp(ctx, nil)
		return v.fail("write", err)
	}
	type outcome struct {
		Err              rankReport
		Committed, Doubt bool
	}
	var out outcome
	if v.rank == 0 {
		err = v.commit(ctx, own, hasPart)
		if !v.committed {
			v.giveUp(ctx, err)
		}
		out = outcome{reportOf(err), v.committed, v.doubt}
	}
	out, told := broadcast(ctx, v.crew, out)
	switch {
	case err != nil || v.rank == 0:
		return err
	case told != nil:
		v.doubt = true
		return v.fail("commit", told)
	}
	v.committed, v.doubt = out.Committed, out.Doubt
	return v.fail("commit", out.Err.of(0))
}

// reported returns what of this rank's own error and that of gathering all of them counts.
func (v *save) reported(own, gathered error) error {
	switch {
	case gathered == nil:
		return own
	case own == nil:
		// Rank 0 may have the reports of all, that of this rank among them, and commit.
		v.doubt = v.rank != 0
		return gathered
	}
	// What was written may have failed because rank 0 has given up since. It cannot commit without
	// this rank.
	return fmt.Errorf("%w (on this rank: %w)", gathered, own)
}

// begin settles the names of all files and prepares the stage. Rank 0 holds the lock until
// release.
func (v *save) begin(ctx context.Context, files []filePlan) (release func(), err error) {
	type share struct {
		Files         map[string]int
		Bytes, Frozen int64 // Frozen are those of frozen tensors, which may be linked
	}
	mine := share{Files: countFiles(files)}
	for _, f := range files {
		if f.frozen {
			mine.Frozen += f.numBytes()
		} else {
			mine.Bytes += f.numBytes()
		}
	}
	all, err := allGather(ctx, v.crew, mine)
	if err != nil {
		return nil, v.fail("begin", err)
	}
	counts, total, frozen := make([]map[string]int, len(all)), int64(0), int64(0)
	for r, s := range all {
		counts[r] = s.Files
		frozen += s.Frozen
		total += s.Bytes
	}
	nameFiles(files, v.rank, counts)
	type start struct {
		Err           rankReport
		Stage, Folder string
		Before        string // the checkpoint before, for links to its files; empty for none
	}
	var s start
	if v.rank == 0 {
		if frozen > 0 {
			s.Before = v.before(ctx)
		}
		if s.Before == "" {
			total += frozen
		}
		release, err = v.prepare(ctx, total)
		s.Err, s.Stage, s.Folder = reportOf(err), v.stage, v.folder
	}
	s, told := broadcast(ctx, v.crew, s)
	switch {
	case err != nil:
	case told != nil:
		err = v.fail("begin", told)
	case !s.Err.isNone():
		err = v.fail("begin", s.Err.of(0))
	}
	v.stage, v.folder = s.Stage, s.Folder
	if err == nil && mine.Frozen > 0 {
		v.links = newLinker(ctx, v.to, s.Before)
	}
	return release, err
}

// before returns the name of the newest checkpoint but that of this step, empty for none.
func (v *save) before(ctx context.Context) string {
	steps, err := Steps(ctx, v.to)
	if err != nil {
		return ""
	}
	for _, step := range steps {
		if step != v.step {
			return StepName(step)
		}
	}
	return ""
}

// prepare makes sure, on rank 0, that nobody else saves there, that the checkpoint has a free
// name, and that there is room for it.
func (v *save) prepare(ctx context.Context, bytes int64) (release func(), err error) {
	if err := context.Cause(ctx); err != nil {
		return nil, v.fail("begin", err)
	}
	unlock, held, err := v.to.Lock(ctx)
	if err != nil {
		return nil, v.fail("lock", err)
	}
	defer func() {
		if err != nil {
			unlock()
		}
	}()
	entries, err := v.to.List(ctx, "")
	if err != nil {
		return nil, v.fail("list", err)
	}
	for _, e := range entries {
		switch {
		case e.Name == v.name() && !v.replaces(v.step):
			if v.damaged, err = v.isDamaged(ctx); err != nil {
				return nil, v.fail("begin", err)
			}
		case held && e.IsFolder && isStage(e.Name): // what killed saves left; nobody else is at work
			if err := v.to.Remove(ctx, e.Name); err != nil {
				return nil, v.fail("remove "+e.Name, err)
			}
		}
	}
	free, known, err := v.to.Free(ctx)
	if err != nil {
		return nil, v.fail("free space", err)
	}
	if known && free < bytes {
		return nil, v.fail("begin", &SpaceError{v.to.String(), bytes, free})
	}
	v.stage, v.folder = v.to.Stage(v.name(), fmt.Sprintf("%016x", rand.Uint64()))
	return unlock, nil
}

// stageInfix is in the name of a stage of a directory, and of a checkpoint half removed.
const stageInfix = ".tmp-"

// isStage says whether name is a folder that a save or a prune works in.
func isStage(name string) bool {
	base, suffix, ok := strings.Cut(name, stageInfix)
	_, isStep := ParseStep(base)
	return ok && isStep && suffix != "" && !isEmergency(suffix)
}

// errThere says that a step has a good checkpoint.
var errThere = &storage.ExistError{Text: "this step is there already"}

// isDamaged looks at what has the checkpoint's name already. A good one is an error.
func (v *save) isDamaged(ctx context.Context) (bool, error) {
	c, err := Open(ctx, v.to, v.name())
	if err == nil {
		err = c.Verify(ctx, nil)
	}
	var d *DamagedError
	switch {
	case err == nil:
		return false, errThere
	case errors.As(err, &d):
		return true, nil
	case errors.Is(err, ErrNone): // files of a stage: of a store without renames
		return false, nil
	}
	return false, err
}

// giveUp removes, on rank 0, what was written, unless err says that it may still become a
// checkpoint. A failure to clean up is not worth more than the failure that led here; the next
// save tries again.
func (v *save) giveUp(ctx context.Context, err error) {
	var doubt *storage.DoubtError
	if v.rank == 0 && v.stage != "" && !errors.As(err, &doubt) {
		_, _ = unstuck(ctx, v.crew, func() (struct{}, error) {
			return struct{}{}, v.to.Remove(context.WithoutCancel(ctx), v.stage)
		})
	}
}

// write writes this rank's files. What it returns is this rank's part of the manifest.
func (v *save) write(ctx context.Context, files []filePlan) (own *Manifest, err error) {
	defer func() {
		// Files is the user's function: its panic is an error of all ranks.
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	own = &Manifest{Step: v.step, Ranks: v.size, Mesh: v.state.describeMesh(), Program: programVersion(), Time: time.Now(), Folder: v.folder, Metric: v.state.Metric.orNone()}
	if v.rank == 0 || v.alone {
		own.Sections = v.outline()
		if own.Values, err = encodeValues(v.state.Values); err != nil {
			return own, err
		}
	}
	values, err := encodeValues(v.state.RankValues)
	if err != nil {
		return own, err
	}
	if len(values) > 0 {
		own.RankValues = make([]map[string]rawJSON, v.size)
		own.RankValues[v.rank] = values
	}
	for _, f := range files {
		var info FileInfo
		var boxes []StoredBox
		linked := false
		if f.frozen && v.links != nil {
			info, boxes, linked = v.links.link(ctx, f, v.stage, v.rank)
		}
		if !linked {
			if info, boxes, err = f.write(ctx, v.to, v.stage, v.rank, v.pace); err != nil {
				return own, err
			}
		}
		own.Files = append(own.Files, info)
		own.add(f, boxes)
	}
	if v.rank == 0 || v.alone {
		if err := v.writeFurther(ctx, own, files); err != nil {
			return own, err
		}
	}
	if v.alone || v.rank != 0 && own.isWorthAPart() {
		text, err := own.encode()
		if err != nil {
			return own, err
		}
		if err := storage.WriteFile(ctx, v.to, v.stage+"/"+partName(v.rank, v.size), text); err != nil {
			return own, err
		}
	}
	return own, context.Cause(ctx)
}

// writeFurther writes the files of the program.
func (v *save) writeFurther(ctx context.Context, own *Manifest, files []filePlan) error {
	if v.state.Files == nil || slices.ContainsFunc(v.there, func(f FileInfo) bool { return !strings.HasSuffix(f.Name, ".safetensors") }) {
		return nil // there are none, or another rank has written them
	}
	w := &Writer{ctx: ctx, to: v.to, folder: v.stage, step: v.step, pace: v.pace, taken: map[string]bool{}, open: map[*File]bool{}}
	for _, f := range files {
		w.taken[f.name] = true
	}
	err := func() error {
		defer func() {
			if w.open != nil {
				w.finish() // Files panics: leave no file behind
			}
		}()
		err := v.state.Files(w)
		further, ferr := w.finish()
		own.Files = append(own.Files, further...)
		return errors.Join(err, skipIf(err, ferr))
	}()
	return err
}

// skipIf leaves out an error that is a part of another.
func skipIf(err, part error) error {
	if err != nil && errors.Is(err, part) {
		return nil
	}
	return part
}
