// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/cohort-ml/cohort/checkpoint/safetensors"
	"github.com/cohort-ml/cohort/checkpoint/storage"
)

// Checkpoint is a checkpoint whose manifest was read, and whose files are there with their
// sizes. The context that it was opened with also bounds what is read from it. It is not
// changed after it was opened; several goroutines may use it.
type Checkpoint struct {
	Path  string // where it is, for messages; of a [storage.Directory] the path of its folder
	Name  string // in its storage; empty if the storage is the checkpoint's own folder
	Step  int
	Files []FileInfo // by name

	ctx      context.Context
	from     storage.Storage
	manifest *Manifest
}

// Open opens a checkpoint of a storage: the one of a name such as [StepName] gives it, or with
// the name "" the newest. The storage may also be a checkpoint's own folder. Open reads the
// manifest and compares the sizes of the files; their bytes are compared where they are read,
// and by [Checkpoint.Verify].
//
// What differs from what a save makes is a [DamagedError]. With the name "" damaged ones are
// passed over; if all are damaged the error is a DamagedError, and if there are none it is
// [ErrNone]. Of a checkpoint of version 1, whose parts have no checksums, every byte is compared
// then. What may not be read (permissions), and what a newer program has saved, is an error, not
// damage.
func Open(ctx context.Context, from storage.Storage, name string) (*Checkpoint, error) {
	if name == "" {
		c, _, err := newest(ctx, from, false, nil)
		return c, err
	}
	return open(ctx, from, name)
}

// Latest returns the newest checkpoint of which every byte agrees with its manifest. Newer ones
// that are damaged are passed over and returned in damaged: tell the user, whose run goes back
// further than expected. The errors are those of [Open].
func Latest(ctx context.Context, from storage.Storage) (latest *Checkpoint, damaged []*DamagedError, err error) {
	return newest(ctx, from, true, nil)
}

// newest finds the newest good checkpoint that is not of one of the steps to skip.
func newest(ctx context.Context, from storage.Storage, verify bool, skip map[int]bool) (*Checkpoint, []*DamagedError, error) {
	if c, err := open(ctx, from, ""); err == nil || !errors.Is(err, ErrNone) {
		if err == nil && (verify || c.manifest.Version == 1) {
			err = c.Verify(ctx, nil)
		}
		if err != nil {
			return nil, nil, err
		}
		return c, nil, nil
	}
	// A save may remove checkpoints meanwhile; a newer one is there then.
	for range 10 {
		c, damaged, again, err := findNewest(ctx, from, verify, skip)
		if !again {
			return c, damaged, err
		}
	}
	return nil, nil, fmt.Errorf("checkpoint: %s: checkpoints vanish faster than they can be read: something else removes them", from)
}

func findNewest(ctx context.Context, from storage.Storage, verify bool, skip map[int]bool) (c *Checkpoint, damaged []*DamagedError, again bool, err error) {
	steps, err := Steps(ctx, from)
	if err != nil {
		return nil, nil, false, err
	}
	for _, step := range steps {
		if skip[step] {
			continue
		}
		c, err := open(ctx, from, StepName(step))
		if err == nil && (verify || c.manifest.Version == 1) {
			err = c.Verify(ctx, nil)
		}
		var d *DamagedError
		switch {
		case err == nil:
			return c, damaged, false, nil
		case errors.Is(err, ErrNone):
			if !commitsInPlace(from) {
				return nil, nil, true, nil // gone since it was listed
			}
			continue // being written
		case !errors.As(err, &d):
			return nil, damaged, false, err
		}
		if isGone(ctx, from, step) {
			return nil, nil, true, nil
		}
		damaged = append(damaged, d)
	}
	return nil, damaged, false, noneGood(from, damaged)
}

// isGone says whether a checkpoint that could not be read has been removed meanwhile.
func isGone(ctx context.Context, from storage.Storage, step int) bool {
	steps, err := Steps(ctx, from)
	return err == nil && !slices.Contains(steps, step)
}

// noneGood is the error where all checkpoints are damaged, or there is none.
func noneGood(from storage.Storage, damaged []*DamagedError) error {
	switch len(damaged) {
	case 0:
		if d, ok := from.(*storage.Directory); ok {
			if _, err := os.Stat(d.Path("")); errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("checkpoint: %s does not exist: %w", from, ErrNone)
			}
		}
		return fmt.Errorf("checkpoint: in %s: %w", from, ErrNone)
	case 1:
		return fmt.Errorf("%w (there is no other one in %s: restore it from a copy, or begin in another directory)", damaged[0], from)
	}
	return fmt.Errorf("%w (and so are the other %d in %s: restore one from a copy, or begin in another directory)", damaged[0], len(damaged)-1, from)
}

// Steps returns the steps of which a storage has a checkpoint, good or not, newest first; none
// where there is nothing.
func Steps(ctx context.Context, from storage.Storage) ([]int, error) {
	entries, err := from.List(ctx, "")
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	var steps []int
	for _, e := range entries {
		if step, ok := ParseStep(e.Name); ok {
			steps = append(steps, step)
		}
	}
	slices.Sort(steps)
	slices.Reverse(steps)
	return steps, nil
}

// commitsInPlace says whether the stage of a checkpoint lies in its folder, as in stores that
// cannot rename. A folder without a manifest is no damaged checkpoint there.
func commitsInPlace(s storage.Storage) bool {
	_, folder := s.Stage("step", "id")
	return folder != ""
}

func join(folder, name string) string {
	switch {
	case folder == "":
		return name
	case name == "":
		return folder
	}
	return folder + "/" + name
}

// open opens the checkpoint in a folder. Where there is no manifest the error is [ErrNone], but
// in a folder of a directory it is damage.
func open(ctx context.Context, from storage.Storage, name string) (*Checkpoint, error) {
	c, err := openManifest(ctx, from, name)
	if err != nil {
		return nil, err
	}
	for _, check := range []func(report) error{c.compareSizes, c.readHeaders} {
		if err := check(firstDamage); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// openManifest is open without a look at the other files.
func openManifest(ctx context.Context, from storage.Storage, name string) (*Checkpoint, error) {
	c := &Checkpoint{Path: storage.At(from, name), Name: name, ctx: ctx, from: from}
	text, err := storage.ReadFile(ctx, from, join(name, ManifestName), maxManifestBytes)
	if errors.Is(err, fs.ErrNotExist) && (name == "" || commitsInPlace(from) || !c.isThere()) {
		return nil, fmt.Errorf("checkpoint: %s: %w", c.Path, ErrNone)
	}
	if err != nil {
		return nil, c.damage(ManifestName, "cannot be read", err)
	}
	if c.manifest, err = parseManifest(text); isNewer(text, err) {
		return nil, fmt.Errorf("checkpoint: %s: %s %w", c.Path, ManifestName, err)
	}
	if err != nil {
		return nil, &DamagedError{Path: c.Path, File: ManifestName, Problem: err.Error()}
	}
	c.Step, c.Files = c.manifest.Step, c.manifest.Files
	// A checkpoint that was copied under another name is good; one that has
	// the name of another step is not.
	last := c.Path[strings.LastIndexByte(c.Path, '/')+1:]
	if named, ok := ParseStep(last); ok && named != c.Step {
		return nil, &DamagedError{Path: c.Path, File: ManifestName, Problem: fmt.Sprintf("is that of step %d", c.Step)}
	}
	return c, nil
}

// isThere says whether there is a folder of the checkpoint's name.
func (c *Checkpoint) isThere() bool {
	entries, err := c.from.List(c.ctx, c.Name)
	if err == nil && len(entries) == 0 { // an empty folder, or none
		entries, err = c.from.List(c.ctx, "")
		return err == nil && slices.ContainsFunc(entries, func(e storage.Entry) bool { return e.Name == c.Name })
	}
	return err == nil
}

const linkProblem = "is a symbolic link, which no save makes: put the file in its place"

// compareSizes reports files that are not there with their sizes.
func (c *Checkpoint) compareSizes(report report) error {
	entries, err := c.from.List(c.ctx, join(c.Name, c.manifest.Folder))
	if errors.Is(err, errors.ErrUnsupported) { // by a server that lists nothing
		entries, err = c.openEach()
	}
	if err != nil {
		return c.damage("", "cannot be listed", err)
	}
	found := make(map[string]storage.Entry, len(entries))
	for _, e := range entries {
		found[e.Name] = e
	}
	if found[ManifestName].IsLink {
		return &DamagedError{Path: c.Path, File: ManifestName, Problem: linkProblem}
	}
	for _, f := range c.Files {
		e, ok := found[f.Name]
		problem := ""
		switch {
		case !ok:
			problem = "is missing"
		case e.IsFolder:
			problem = "is not a regular file"
		case e.IsLink:
			problem = linkProblem
		case e.Size != f.Bytes:
			problem = fmt.Sprintf("has %d bytes, its manifest says %d", e.Size, f.Bytes)
		default:
			continue
		}
		if err := report(&DamagedError{Path: c.Path, File: f.Name, Problem: problem}); err != nil {
			return err
		}
	}
	return nil
}

// openEach lists the files of the checkpoint by opening them.
func (c *Checkpoint) openEach() ([]storage.Entry, error) {
	entries := make([]storage.Entry, len(c.Files))
	work := newWorkers(c.ctx, numReaders)
	for i, f := range c.Files {
		work.Go(func() error {
			o, err := c.from.Open(work.ctx, join(join(c.Name, c.manifest.Folder), f.Name))
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil {
				return err
			}
			entries[i] = storage.Entry{Name: f.Name, Size: o.Size()}
			return o.Close()
		})
	}
	return entries, work.Wait()
}

// damage makes a DamagedError of an error of the storage: where a file is not there or not
// whole, or the disk cannot read it. Every other error, as of a server that does not answer, has
// its cause outside the checkpoint.
func (c *Checkpoint) damage(file, problem string, err error) error {
	isDamage := err == nil || errors.As(err, new(*safetensors.FormatError))
	for _, e := range []error{fs.ErrNotExist, fs.ErrInvalid, io.EOF, io.ErrUnexpectedEOF, syscall.EIO, syscall.EISDIR, syscall.ENOTDIR, syscall.ELOOP} {
		isDamage = isDamage || errors.Is(err, e)
	}
	var server *storage.ServerError // whatever it wraps, such as the end of a connection
	if !isDamage || errors.As(err, &server) || c.ctx.Err() != nil {
		return fmt.Errorf("checkpoint: %s: %s %s: %w", c.Path, file, problem, err)
	}
	return &DamagedError{Path: c.Path, File: file, Problem: problem, Err: err}
}

// readHeaders finds the tensors of a checkpoint of version 1, whose manifest lists files alone.
func (c *Checkpoint) readHeaders(report report) error {
	if c.manifest.Version != 1 {
		return nil
	}
	for _, f := range c.Files {
		section, ok := strings.CutSuffix(f.Name, ".safetensors")
		if !ok {
			continue
		}
		file, err := c.readHeader(f.Name)
		if err = told(report, err); err != nil {
			return err
		}
		if file == nil {
			continue
		}
		s := Section{Name: section}
		for _, e := range file.Entries() {
			s.Tensors = append(s.Tensors, StoredTensor{Name: e.Name, DType: e.DType, Shape: e.Shape,
				Boxes: []StoredBox{{File: f.Name, At: e.Offset, Start: make([]int, len(e.Shape)), Shape: e.Shape}}})
		}
		c.manifest.Sections = append(c.manifest.Sections, s)
	}
	return nil
}

func (c *Checkpoint) readHeader(name string) (*safetensors.File, error) {
	o, err := c.openFile(name)
	if err != nil {
		return nil, err
	}
	defer o.Close()
	file, err := safetensors.NewFile(o, o.Size(), c.fileName(name))
	if err != nil {
		return nil, c.damage(name, "cannot be read", err)
	}
	return file, nil
}

func (c *Checkpoint) openFile(name string) (storage.Object, error) {
	o, err := c.from.Open(c.ctx, join(join(c.Name, c.manifest.Folder), name))
	if err != nil {
		return nil, c.damage(name, "cannot be read", err)
	}
	return o, nil
}

// fileName returns where a file of the checkpoint is, for messages.
func (c *Checkpoint) fileName(name string) string {
	return storage.At(c.from, join(join(c.Name, c.manifest.Folder), name))
}

// Manifest returns what the checkpoint has. Do not change it.
func (c *Checkpoint) Manifest() *Manifest { return c.manifest }

// Context returns the context that the checkpoint was opened with.
func (c *Checkpoint) Context() context.Context { return c.ctx }

// Storage returns where the checkpoint lies.
func (c *Checkpoint) Storage() storage.Storage { return c.from }

// Has says whether the checkpoint has a file of that name.
func (c *Checkpoint) Has(name string) bool {
	return slices.ContainsFunc(c.Files, func(f FileInfo) bool { return f.Name == name })
}

// ReadFile reads a file, which must have at most limit bytes, and compares it with its checksum.
func (c *Checkpoint) ReadFile(name string, limit int64) ([]byte, error) {
	info, err := c.findFile(name)
	if err != nil {
		return nil, err
	}
	b, err := storage.ReadFile(c.ctx, c.from, join(join(c.Name, c.manifest.Folder), name), limit)
	if err != nil {
		return nil, fmt.Errorf("checkpoint: reading %s: %w", c.fileName(name), err)
	}
	if err := c.checkSum(info, crc32.Checksum(b, castagnoli)); err != nil {
		return nil, err
	}
	return b, nil
}

// WriteFile writes a file of any size into w. If its bytes were changed, the error is a
// [*DamagedError], and w has them.
func (c *Checkpoint) WriteFile(w io.Writer, name string) error {
	info, err := c.findFile(name)
	if err != nil {
		return err
	}
	return c.stream(c.ctx, w, info, func(int) {})
}

func (c *Checkpoint) findFile(name string) (FileInfo, error) {
	i := slices.IndexFunc(c.Files, func(f FileInfo) bool { return f.Name == name })
	if i < 0 {
		names := make([]string, len(c.Files))
		for i, f := range c.Files {
			names[i] = f.Name
		}
		return FileInfo{}, fmt.Errorf("checkpoint: %s has no file %q: it has %q", c.Path, name, names)
	}
	return c.Files[i], nil
}

func (c *Checkpoint) checkSum(f FileInfo, sum uint32) error {
	if sum == f.CRC {
		return nil
	}
	return &DamagedError{Path: c.Path, File: f.Name, Problem: fmt.Sprintf("has the checksum %08x, its manifest says %08x: its bytes were changed", sum, f.CRC)}
}

// ReadJSON reads a file of at most 64 MiB into v.
func (c *Checkpoint) ReadJSON(name string, v any) error {
	b, err := c.ReadFile(name, 64<<20)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("checkpoint: reading %s: %w", c.fileName(name), err)
	}
	return nil
}

// HasValue says whether the checkpoint has a value of the run.
func (c *Checkpoint) HasValue(name string) bool {
	_, ok := c.manifest.Values[name]
	return ok || c.manifest.Version == 1 && c.Has(name+".json")
}

// HasProgress says whether the checkpoint says where a run was, see [Checkpoint.ReadProgress].
func (c *Checkpoint) HasProgress() bool { return c.HasValue(ProgressValue) }

// Value puts a value of the run into v. A checkpoint of version 1 has its values in files: the
// value "progress" is that of progress.json.
func (c *Checkpoint) Value(name string, v any) error {
	text, ok := c.manifest.Values[name]
	if !ok && c.manifest.Version == 1 && c.Has(name+".json") {
		return c.ReadJSON(name+".json", v)
	}
	if !ok {
		var names []string
		for name := range c.manifest.Values {
			names = append(names, name)
		}
		slices.Sort(names)
		return fmt.Errorf("checkpoint: %s has no value %q: it has %q", c.Path, name, names)
	}
	if err := json.Unmarshal(text, v); err != nil {
		return fmt.Errorf("checkpoint: the value %q of %s: %w", name, c.Path, err)
	}
	return nil
}
