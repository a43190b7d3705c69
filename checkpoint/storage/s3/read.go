// SPDX-License-Identifier: Apache-2.0

package s3

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/minio/minio-go/v7"

	"github.com/cohort-ml/cohort/checkpoint/storage"
)

// errChanged says that an object is no longer the one that was opened.
var errChanged = errors.New("it was replaced or removed while it was read")

// Open is as in [storage.Storage]. Reads of the object are requests of their own,
// for the range that is read.
func (b *Bucket) Open(ctx context.Context, name string) (storage.Object, error) {
	if err := b.begin(ctx, name); err != nil {
		return nil, err
	}
	o, err := b.stat(ctx, name)
	if err != nil {
		return nil, err
	}
	return &object{b: b, ctx: ctx, name: name, size: o.Size, etag: o.ETag}, nil
}

// object is an object that is open for reading.
type object struct {
	b    *Bucket
	ctx  context.Context // of Open: reads end with it
	name string
	size int64
	etag string
}

func (o *object) Size() int64  { return o.size }
func (o *object) Close() error { return nil }

// ReadAt is as in [io.ReaderAt]. A body that ends early is asked for from there.
func (o *object) ReadAt(p []byte, at int64) (n int, err error) {
	if at < 0 {
		return 0, fmt.Errorf("storage: reading %s at byte %d", storage.At(o.b, o.name), at)
	}
	want := p[:max(0, min(int64(len(p)), o.size-at))]
	for n < len(want) {
		before := n
		err = o.b.retry(o.ctx, "read", o.name, int64(len(want)-n), func(ctx context.Context) error {
			got, err := o.read(ctx, want[n:], at+int64(n))
			n += got
			if err != nil && n > before {
				return nil // it goes on: begin to count attempts again
			}
			return err
		})
		if err != nil {
			return n, err
		}
	}
	if len(want) < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// read asks for a range once.
func (o *object) read(ctx context.Context, p []byte, at int64) (n int, err error) {
	opts := minio.GetObjectOptions{}
	if err := opts.SetRange(at, at+int64(len(p))-1); err != nil {
		return 0, err
	}
	body, info, header, err := o.b.core.GetObject(ctx, o.b.place.bucket, o.b.key(o.name), opts)
	if err != nil {
		return 0, err
	}
	defer body.Close()
	if info.ETag != o.etag {
		return 0, errChanged
	}
	if header.Get("Content-Range") == "" && (at != 0 || int64(len(p)) != o.size) {
		return 0, fmt.Errorf("the server sends the whole object where a range was asked for")
	}
	n, err = io.ReadFull(body, p)
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}
