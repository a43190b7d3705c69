// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"math/rand/v2"

	"github.com/cohort-ml/cohort/checkpoint/storage"
)

// Copy copies a checkpoint to another storage, under the name of its step. Every byte is
// compared with its checksum on the way. The copy appears whole or not at all. A step that is
// there already is an error that wraps [fs.ErrExist]. progress, which may be nil, is called
// with the bytes that were copied. beside names files that lie with the checkpoint and were written
// after it, such as a proof: those that are there are copied once the copy is in place.
func (c *Checkpoint) Copy(ctx context.Context, to storage.Storage, progress func(bytes int64), beside ...string) error {
	fail := func(op string, err error) error {
		return &SaveError{Where: to.String(), Step: c.Step, Op: op, Err: err}
	}
	name := StepName(c.Step)
	release, _, err := to.Lock(ctx)
	if err != nil {
		if isBusy(err) {
			return err
		}
		return fail("lock", err)
	}
	defer release()
	if _, err := openManifest(ctx, to, name); err == nil {
		return fail("begin", errThere)
	}
	var need int64
	for _, f := range c.Files {
		need += f.Bytes
	}
	if free, known, err := to.Free(ctx); err != nil {
		return fail("free space", err)
	} else if known && free < need {
		return fail("begin", &SpaceError{to.String(), need, free})
	}
	stage, folder := to.Stage(name, fmt.Sprintf("%016x", rand.Uint64()))
	committed := false
	defer func() {
		if !committed {
			to.Remove(context.WithoutCancel(ctx), stage) // a failure here is not worth more than the first
		}
	}()
	var done int64
	for _, f := range c.Files {
		err := c.copyFile(ctx, f, to, stage, func(n int) {
			if done += int64(n); progress != nil {
				progress(done)
			}
		})
		if err != nil {
			return fail("copy", err)
		}
	}
	text, err := c.manifestIn(ctx, folder)
	if err == nil {
		err = to.Commit(ctx, stage, name, text)
	}
	var late *storage.CommittedError
	committed = err == nil || errors.As(err, &late)
	if err != nil {
		return &SaveError{Where: to.String(), Step: c.Step, Op: "commit", Committed: committed, Doubt: errors.As(err, new(*storage.DoubtError)), Err: err}
	}
	for _, file := range beside {
		if err := c.copyBeside(ctx, file, to, name); err != nil {
			return &SaveError{Where: to.String(), Step: c.Step, Op: "copy " + file, Committed: true, Err: err}
		}
	}
	return nil
}

// maxBeside bounds a file that lies beside a checkpoint.
const maxBeside = 64 << 20

// copyBeside copies a file that the manifest does not have, if it is there.
func (c *Checkpoint) copyBeside(ctx context.Context, file string, to storage.Storage, name string) error {
	text, err := storage.ReadFile(ctx, c.from, join(c.Name, file), maxBeside)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return storage.WriteFile(ctx, to, name+"/"+file, text)
}

// manifestIn returns the manifest of a copy whose files lie in a folder of it.
func (c *Checkpoint) manifestIn(ctx context.Context, folder string) ([]byte, error) {
	if folder == c.manifest.Folder { // also of what a newer program may have added
		return storage.ReadFile(ctx, c.from, join(c.Name, ManifestName), maxManifestBytes)
	}
	if c.manifest.Version == 1 {
		return nil, fmt.Errorf("%s is a checkpoint of version 1, which cannot lie in such a store: convert it (cohort ckpt convert --to cohort)", c.Path)
	}
	m := *c.manifest
	m.Folder = folder
	return m.encode()
}

func (c *Checkpoint) copyFile(ctx context.Context, f FileInfo, to storage.Storage, stage string, progress func(n int)) error {
	out, err := to.Create(ctx, stage+"/"+f.Name)
	if err != nil {
		return err
	}
	defer out.Abort()
	if err := c.stream(ctx, out, f, progress); err != nil {
		return err
	}
	return out.Close()
}

// stream writes the bytes of a file into w and compares them with their sum.
func (c *Checkpoint) stream(ctx context.Context, w io.Writer, f FileInfo, progress func(n int)) error {
	o, err := c.openFile(f.Name)
	if err != nil {
		return err
	}
	defer o.Close()
	buf := make([]byte, min(copyBytes, f.Bytes))
	var crc uint32
	for at := int64(0); at < f.Bytes; {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		piece := buf[:min(int64(len(buf)), f.Bytes-at)]
		if n, err := o.ReadAt(piece, at); n < len(piece) {
			return c.damage(f.Name, fmt.Sprintf("cannot be read at byte %d", at+int64(n)), err)
		}
		crc = crc32.Update(crc, castagnoli, piece)
		if _, err := w.Write(piece); err != nil {
			return err
		}
		at += int64(len(piece))
		progress(len(piece))
	}
	return c.checkSum(f, crc)
}
