// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"

	"github.com/cohort-ml/cohort/checkpoint/safetensors"
	"github.com/cohort-ml/cohort/checkpoint/storage"
)

// report is told of damage. Its error ends the search for more.
type report func(*DamagedError) error

func firstDamage(d *DamagedError) error { return d }

// told hands damage to report, and returns other errors.
func told(report report, err error) error {
	var d *DamagedError
	if errors.As(err, &d) {
		return report(d)
	}
	return err
}

// Verify reads every byte and compares it with the manifest. What differs is a [DamagedError].
// It calls progress, which may be nil, with the bytes read so far.
func (c *Checkpoint) Verify(ctx context.Context, progress func(bytes int64)) error {
	return c.verify(ctx, progress, firstDamage)
}

// Examine opens a checkpoint as [Open] does, and verifies it as [Checkpoint.Verify] does, but
// does not end at the first damage. It calls damaged with each, and progress, which may be nil,
// with the bytes that were read so far and with those of all files. The checkpoint is nil if
// its manifest cannot be read. What lies outside the checkpoint, such as a missing permission,
// is an error.
func Examine(ctx context.Context, from storage.Storage, name string, progress func(done, total int64), damaged func(*DamagedError)) (*Checkpoint, error) {
	all := func(d *DamagedError) error { damaged(d); return nil }
	c, err := openManifest(ctx, from, name)
	if err != nil {
		return nil, told(all, err)
	}
	var total int64
	for _, f := range c.Files {
		total += f.Bytes
	}
	err = c.readHeaders(all) // a file that cannot be read is told of below
	if err == nil {
		err = c.verify(ctx, func(bytes int64) {
			if progress != nil {
				progress(bytes, total)
			}
		}, all)
	}
	return c, err
}

func (c *Checkpoint) verify(ctx context.Context, progress func(bytes int64), report report) error {
	boxes := c.boxesByFile()
	var done int64
	buf := make([]byte, chunkBytes)
	for _, f := range c.Files {
		err := c.verifyFile(ctx, f, boxes[f.Name], buf, report, func(n int) {
			if done += int64(n); progress != nil {
				progress(done)
			}
		})
		if err = told(report, err); err != nil {
			return err
		}
	}
	return nil
}

// namedBox is a box with its tensor.
type namedBox struct {
	StoredBox
	tensor string
	bytes  int64
}

func (c *Checkpoint) boxesByFile() map[string][]namedBox {
	byFile := make(map[string][]namedBox)
	for _, s := range c.manifest.Sections {
		for _, t := range s.Tensors {
			for _, b := range t.Boxes {
				size := safetensors.Info{DType: t.DType, Shape: b.Shape}.NumBytes()
				if b.Sums != nil && size > 0 {
					byFile[b.File] = append(byFile[b.File], namedBox{b, t.Name, size})
				}
			}
		}
	}
	for _, boxes := range byFile {
		slices.SortFunc(boxes, func(a, b namedBox) int { return int(min(1, max(-1, a.At-b.At))) })
	}
	return byFile
}

func (c *Checkpoint) verifyFile(ctx context.Context, info FileInfo, boxes []namedBox, buf []byte, report report, progress func(n int)) error {
	o, err := c.openFile(info.Name)
	if err != nil {
		return err
	}
	defer o.Close()
	damaged := func(tensor, format string, args ...any) *DamagedError {
		return &DamagedError{Path: c.Path, File: info.Name, Tensor: tensor, Problem: fmt.Sprintf(format, args...)}
	}
	end := min(o.Size(), info.Bytes)
	if o.Size() != info.Bytes {
		cut := "" // the first tensor that is not whole
		if i := slices.IndexFunc(boxes, func(b namedBox) bool { return b.At+b.bytes > end }); i >= 0 {
			cut = boxes[i].tensor
		}
		if err := report(damaged(cut, "has %d bytes, its manifest says %d", o.Size(), info.Bytes)); err != nil {
			return err
		}
	}
	var crc uint32
	numDamaged := 0
	for at := int64(0); at < end; {
		if err := context.Cause(ctx); err != nil {
			return fmt.Errorf("checkpoint: verifying %s: %w", c.fileName(info.Name), err)
		}
		// Up to the next box, or a chunk of this one.
		n, box, chunk := min(end-at, int64(len(buf))), "", int64(-1)
		var want uint32
		for len(boxes) > 0 && boxes[0].At+boxes[0].bytes <= at {
			boxes = boxes[1:]
		}
		if len(boxes) > 0 {
			b := boxes[0]
			if at < b.At {
				n = min(n, b.At-at)
			} else if within := at - b.At; within%chunkBytes == 0 {
				box, chunk = b.tensor, within/chunkBytes
				n, want = min(chunkBytes, b.bytes-within), b.Sums[chunk]
			} else {
				return damaged(b.tensor, "has two tensors in the same bytes from %d on", b.At)
			}
		}
		if at+n > end { // a chunk that is cut short
			return nil
		}
		if got, err := o.ReadAt(buf[:n], at); int64(got) < n {
			numDamaged++
			err := c.damage(info.Name, fmt.Sprintf("cannot be read at byte %d", at+int64(got)), err)
			if d, ok := err.(*DamagedError); ok {
				d.Tensor = box
			}
			if err := told(report, err); err != nil {
				return err
			}
			at += n
			continue
		}
		sum := crc32.Checksum(buf[:n], castagnoli)
		if chunk >= 0 && sum != want {
			numDamaged++
			err := report(damaged(box, "has the checksum %08x for the %d bytes from %d on, its manifest says %08x: its bytes were changed", sum, n, at, want))
			if err != nil {
				return err
			}
		}
		crc = joinSums(crc, sum, n)
		at += n
		progress(int(n))
	}
	if crc != info.CRC && numDamaged == 0 && end == info.Bytes {
		return damaged("", "has the checksum %08x, its manifest says %08x: its bytes were changed", crc, info.CRC)
	}
	return nil
}
