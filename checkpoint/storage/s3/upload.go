// SPDX-License-Identifier: Apache-2.0

package s3

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/cohort-ml/cohort/checkpoint/storage"
)

// numUploads is how many parts of a file are on their way at a time.
const numUploads = 3

// Create is as in [storage.Storage]. A file up to the size of a part is one
// request at its end. A longer one is uploaded in parts while it is written; three of
// them and one that is filled are in memory.
func (b *Bucket) Create(ctx context.Context, name string) (storage.File, error) {
	if err := b.begin(ctx, name); err != nil {
		return nil, err
	}
	f := &file{b: b, name: name, slots: make(chan struct{}, numUploads)}
	f.ctx, f.cancel = context.WithCancelCause(ctx)
	return f, nil
}

// file is a file that is being written.
type file struct {
	b      *Bucket
	ctx    context.Context // ends with the first error
	cancel context.CancelCauseFunc
	name   string

	part   []byte // the part that is being filled
	upload string // id of the upload; "" before the first part
	parts  []minio.CompletePart
	size   int64
	closed bool
	failed error

	slots chan struct{} // one for each part on its way
	spare sync.Pool     // of *[]byte, buffers of parts
	wg    sync.WaitGroup
	mu    sync.Mutex // of parts
}

// Write appends p. After an error the file can only be aborted.
func (f *file) Write(p []byte) (n int, err error) {
	if f.closed {
		return 0, fmt.Errorf("storage: %s is written to after its end", storage.At(f.b, f.name))
	}
	for n < len(p) {
		if err := f.err(); err != nil {
			return n, err
		}
		if int64(len(f.part)) == f.b.place.partBytes { // there is more: so it is in parts
			if err := f.send(); err != nil {
				return n, err
			}
		}
		piece := p[n:min(int64(len(p)), int64(n)+f.b.place.partBytes-int64(len(f.part)))]
		f.grow(len(piece))
		f.part = append(f.part, piece...)
		n += len(piece)
	}
	return n, f.err()
}

// grow makes room in the part. A file that needs one part only has no more memory
// than it has bytes, up to a factor of two.
func (f *file) grow(n int) {
	if len(f.part)+n <= cap(f.part) {
		return
	}
	if f.upload != "" || int64(len(f.part)+n)*2 > f.b.place.partBytes {
		if spare, ok := f.spare.Get().(*[]byte); ok {
			f.part = append((*spare)[:0], f.part...)
			return
		}
		f.part = append(make([]byte, 0, f.b.place.partBytes), f.part...)
		return
	}
	f.part = append(make([]byte, 0, 2*(len(f.part)+n)), f.part...)
}

func (f *file) err() error {
	if f.failed == nil && f.ctx.Err() != nil {
		f.failed = context.Cause(f.ctx)
		if !strings.HasPrefix(f.failed.Error(), "storage: ") {
			f.failed = fmt.Errorf("storage: writing %s: %w", storage.At(f.b, f.name), f.failed)
		}
	}
	return f.failed
}

// send uploads the part in the background.
func (f *file) send() error {
	if f.upload == "" {
		err := f.b.retry(f.ctx, "begin the upload of", f.name, 0, func(ctx context.Context) (err error) {
			f.upload, err = f.b.core.NewMultipartUpload(ctx, f.b.place.bucket, f.b.key(f.name), minio.PutObjectOptions{})
			return err
		})
		if err != nil {
			f.cancel(err)
			return f.err()
		}
	}
	number := len(f.parts) + 1
	if number > maxParts {
		f.cancel(fmt.Errorf("storage: %s has more than the %d parts that an upload may have: give the address larger ones, such as part=%dMiB", storage.At(f.b, f.name), maxParts, f.b.place.partBytes>>20*4))
		return f.err()
	}
	select {
	case f.slots <- struct{}{}:
	case <-f.ctx.Done():
		return f.err()
	}
	data := f.part
	f.part = nil
	f.size += int64(len(data))
	f.mu.Lock()
	f.parts = append(f.parts, minio.CompletePart{PartNumber: number})
	f.mu.Unlock()
	f.wg.Go(func() {
		defer func() { <-f.slots }()
		sum := f.b.sum(data)
		err := f.b.retry(f.ctx, "upload", f.name, int64(len(data)), func(ctx context.Context) error {
			p, err := f.b.core.PutObjectPart(ctx, f.b.place.bucket, f.b.key(f.name), f.upload, number, bytes.NewReader(data), int64(len(data)),
				minio.PutObjectPartOptions{Sha256Hex: sum, DisableContentSha256: true})
			if err == nil {
				f.mu.Lock()
				f.parts[number-1].ETag = p.ETag
				f.mu.Unlock()
			}
			return err
		})
		if err != nil {
			f.cancel(err)
			return
		}
		f.spare.Put(&data)
	})
	return nil
}

// sum returns the checksum that goes with a body: over TLS nobody can change it.
func (b *Bucket) sum(data []byte) string {
	if b.place.endpoint.Scheme == "https" {
		return ""
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// put makes an object of data, in one attempt.
func (b *Bucket) put(ctx context.Context, name string, data []byte, opts minio.PutObjectOptions) error {
	opts.DisableContentSha256 = true // it would be a sum of each piece of the body: not every server reads such bodies
	_, err := b.core.PutObject(ctx, b.place.bucket, b.key(name), bytes.NewReader(data), int64(len(data)), "", b.sum(data), opts)
	return err
}

// Close is as in [storage.File].
func (f *file) Close() error {
	if f.closed {
		return f.failed
	}
	if err := f.err(); err != nil {
		f.Abort()
		return err
	}
	if f.upload == "" {
		f.closed = true
		f.failed = f.b.retry(f.ctx, "write", f.name, int64(len(f.part)), func(ctx context.Context) error {
			return f.b.put(ctx, f.name, f.part, minio.PutObjectOptions{})
		})
		f.part = nil
		f.cancel(nil)
		return f.failed
	}
	if len(f.part) > 0 {
		f.send() // its error is in f.err
	}
	f.wg.Wait()
	err := f.err()
	if err == nil {
		err = f.complete()
	}
	if err != nil {
		f.failed = err
		f.Abort()
		return err
	}
	f.closed = true
	f.cancel(nil)
	return nil
}

// complete makes an object of the parts. If an earlier attempt did it and its answer
// was lost, the upload is no longer known, and an object is there that was not before.
func (f *file) complete() error {
	before, err := f.b.stat(f.ctx, f.name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	numAttempts := 0
	return f.b.retry(f.ctx, "complete the upload of", f.name, f.size/64, func(ctx context.Context) error {
		numAttempts++
		_, err := f.b.core.CompleteMultipartUpload(ctx, f.b.place.bucket, f.b.key(f.name), f.upload, f.parts, minio.PutObjectOptions{})
		if err == nil || numAttempts == 1 || statusOf(err) != http.StatusNotFound {
			return err
		}
		o, serr := f.b.client.StatObject(ctx, f.b.place.bucket, f.b.key(f.name), minio.StatObjectOptions{})
		switch {
		case serr == nil && o.Size == f.size && (o.ETag != before.ETag || !o.LastModified.Equal(before.LastModified)):
			return nil
		case serr != nil && statusOf(serr) != http.StatusNotFound:
			return serr
		}
		return err
	})
}

// Abort is as in [storage.File].
func (f *file) Abort() {
	if f.closed {
		return
	}
	f.closed = true
	if f.failed == nil {
		f.failed = fmt.Errorf("storage: %s was given up", storage.At(f.b, f.name))
	}
	f.cancel(f.failed)
	f.wg.Wait()
	f.part = nil
	if f.upload == "" {
		return
	}
	// Also when the context has ended. What stays is invisible, and a failure to
	// clean up is not worth more than the failure that led here.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(f.ctx), 10*time.Second)
	defer cancel()
	f.b.retry(ctx, "give up", f.name, 0, func(ctx context.Context) error {
		return f.b.core.AbortMultipartUpload(ctx, f.b.place.bucket, f.b.key(f.name), f.upload)
	})
}
