// SPDX-License-Identifier: Apache-2.0

// Package s3 keeps checkpoints in a bucket of S3 or of a server that speaks its
// protocol: MinIO, Ceph, R2 and many others.
//
// [Open] takes an address:
//
//	s3://BUCKET/PREFIX?endpoint=http://127.0.0.1:9000&region=us-east-1
//
// PREFIX is the folder of the run in the bucket. Parameters:
//
//	endpoint   URL of the server, https if it has no scheme (default: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, Amazon)
//	region     region of the bucket (default: AWS_REGION, AWS_DEFAULT_REGION, what the server says)
//	part       bytes of a part of an upload, such as 64MiB (default 16MiB); a file has at most 10,000 parts
//	commit     condition or listing (default: a probe finds out, see below)
//	anonymous  true: without credentials, to read what is public
//
// Credentials never stand in an address. They come from the environment
// (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN), from the profile
// AWS_PROFILE of the files in ~/.aws, and on Amazon from the role of the machine or
// the container. They are never printed.
//
// # Layout and commit
//
// A checkpoint is its manifest: it exists if and only if PREFIX/step-8/manifest.json
// does. The other files lie in PREFIX/step-8/ID, and each save has an ID of its own. So
// two savers of a step never write the same object, and what was not committed is
// nobody's checkpoint.
//
// The manifest is put with the condition If-None-Match: *. The server takes it only
// if there is none, so of several savers exactly one wins. Some servers accept the
// condition and ignore it. So the first commit of a [Bucket] makes several conditional
// puts of one new object at once. If more than one succeeds, or the server refuses the
// header, the Bucket commits by intents instead. A saver puts an intent beside the
// manifest and lists both in one request. It puts the manifest when there are no
// manifest and no other intents. The saver with the smallest intent waits for that;
// the others withdraw and wait for its manifest. This is right on a server whose lists
// show all that was put before, as those of Amazon and most others do. The intent of a
// saver that was killed counts for a minute.
//
// A commit whose request was sent and never answered is in doubt. Then Commit looks for
// the manifest. If it is not there it may still come, and the error is a
// [storage.DoubtError]. The Bucket does not remove the stage of such a commit.
//
// # Requests
//
// Requests are repeated after network errors, answers of 5xx and 429, and bodies that
// end early, with a growing random pause. Each attempt has a deadline by its size. A
// file is uploaded in parts while it is written. Link copies within the server.
//
// Caveats. A Bucket has no locks and does not know how much space is free. Folders are
// only names of objects. A process that is killed may leave parts of uploads, which
// cost money and which lists do not show: Remove of the stage gives them up, and so
// does a lifecycle rule (AbortIncompleteMultipartUpload). A network that delivers a
// request long after its sender gave up, when the checkpoint was removed, may bring its
// manifest back; it names files that are not there, and counts as damaged. A Bucket may
// be used by several goroutines. The zero value is not usable.
package s3

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/cohort-ml/cohort/checkpoint/storage"
)

// Bucket is a [storage.Storage] in the objects of a bucket under a prefix.
type Bucket struct {
	client *minio.Client
	core   minio.Core // of client: requests that it does not split up
	place  place

	pauses     pauses
	intentLife time.Duration // how long an intent counts

	mu     sync.Mutex
	commit string          // CommitByCondition or CommitByListing; "" before the probe
	doubts map[string]bool // stages whose commit is in doubt
}

var _ storage.Storage = (*Bucket)(nil)

func (b *Bucket) String() string { return b.place.address }

// Under returns the bucket's storage of a folder, see [storage.Under].
func (b *Bucket) Under(folder string) storage.Storage {
	b.mu.Lock()
	defer b.mu.Unlock()
	u := &Bucket{client: b.client, core: b.core, place: b.place, pauses: b.pauses, intentLife: b.intentLife, commit: b.commit, doubts: map[string]bool{}}
	u.place.address, u.place.prefix = storage.At(b, folder), b.key(folder)
	return u
}

// key returns the key of an object, or of a folder if name has a slash at its end.
func (b *Bucket) key(name string) string {
	if b.place.prefix == "" {
		return name
	}
	return b.place.prefix + "/" + name
}

// name is the inverse of key.
func (b *Bucket) name(key string) string {
	return strings.TrimPrefix(strings.TrimPrefix(key, b.place.prefix), "/")
}

// begin checks names that a caller gives.
func (b *Bucket) begin(ctx context.Context, names ...string) error {
	for _, name := range names {
		if err := storage.CheckName(name); err != nil {
			return err
		}
	}
	if err := context.Cause(ctx); err != nil {
		return fmt.Errorf("storage: %s: %w", storage.At(b, names[0]), err)
	}
	return nil
}

// Stage is as in [storage.Storage]: a folder of the checkpoint, where the files stay.
func (b *Bucket) Stage(name, id string) (stage, folder string) { return name + "/" + id, id }

// Free is as in [storage.Storage]: a bucket does not say.
func (b *Bucket) Free(context.Context) (bytes int64, known bool, err error) { return 0, false, nil }

// Lock is as in [storage.Storage]: a bucket has no locks.
func (b *Bucket) Lock(context.Context) (release func(), held bool, err error) {
	return func() {}, false, nil
}

// List is as in [storage.Storage].
func (b *Bucket) List(ctx context.Context, folder string) ([]storage.Entry, error) {
	prefix := ""
	if folder != "" {
		if err := b.begin(ctx, folder); err != nil {
			return nil, err
		}
		prefix = folder + "/"
	}
	objects, err := b.list(ctx, prefix, false)
	if err != nil {
		return nil, err
	}
	var entries []storage.Entry
	for _, o := range objects {
		name, isFolder := strings.CutSuffix(strings.TrimPrefix(o.Key, b.key(prefix)), "/")
		if storage.CheckName(name) != nil {
			continue // an object that no storage has made, such as the mark of a folder
		}
		e := storage.Entry{Name: name, IsFolder: isFolder, Modified: o.LastModified}
		if !isFolder {
			e.Size = o.Size
		}
		entries = append(entries, e)
	}
	slices.SortFunc(entries, func(a, b storage.Entry) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), cmp.Compare(a.Size, b.Size))
	})
	return entries, nil
}

// list returns the objects whose names begin with prefix, and if not all then with
// folders in place of what lies in them. A list that breaks off goes on after its
// last object.
func (b *Bucket) list(ctx context.Context, prefix string, all bool) ([]minio.ObjectInfo, error) {
	var objects []minio.ObjectInfo
	seen := map[string]bool{}
	last := ""
	err := b.retry(ctx, "list", prefix, 0, func(ctx context.Context) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		for o := range b.client.ListObjectsIter(ctx, b.place.bucket, minio.ListObjectsOptions{Prefix: b.key(prefix), Recursive: all, StartAfter: last}) {
			if o.Err != nil {
				return o.Err
			}
			if !seen[o.Key] {
				seen[o.Key] = true
				objects = append(objects, o)
			}
			last = max(last, o.Key)
		}
		return ctx.Err()
	})
	return objects, err
}

// Link is as in [storage.Storage]: the server copies.
func (b *Bucket) Link(ctx context.Context, from, to string) error {
	if err := b.begin(ctx, from, to); err != nil {
		return err
	}
	o, err := b.stat(ctx, from)
	if err != nil {
		return err
	}
	return b.copyObject(ctx, from, to, o)
}

// maxCopyBytes is the size up to which one request copies an object.
const maxCopyBytes = 5 << 30

func (b *Bucket) copyObject(ctx context.Context, from, to string, o minio.ObjectInfo) error {
	source := minio.CopySrcOptions{Bucket: b.place.bucket, Object: b.key(from)}
	target := minio.CopyDestOptions{Bucket: b.place.bucket, Object: b.key(to)}
	return b.retry(ctx, "copy", from, o.Size, func(ctx context.Context) error {
		var err error
		if o.Size <= maxCopyBytes {
			_, err = b.client.CopyObject(ctx, target, source)
		} else {
			_, err = b.client.ComposeObject(ctx, target, source)
		}
		return err
	})
}

func (b *Bucket) stat(ctx context.Context, name string) (o minio.ObjectInfo, err error) {
	err = b.retry(ctx, "stat", name, 0, func(ctx context.Context) error {
		o, err = b.client.StatObject(ctx, b.place.bucket, b.key(name), minio.StatObjectOptions{})
		return err
	})
	return o, err
}

// SetAside is as in [storage.Storage]: the manifest is renamed.
func (b *Bucket) SetAside(ctx context.Context, name string) error {
	if err := b.begin(ctx, name); err != nil {
		return err
	}
	manifest := name + "/" + storage.ManifestName
	o, err := b.stat(ctx, manifest)
	if errors.Is(err, fs.ErrNotExist) {
		if found, lerr := b.list(ctx, name+"/", false); lerr == nil && len(found) > 0 {
			return nil // files without a manifest are no checkpoint
		}
	}
	if err != nil {
		return err
	}
	if err := b.copyObject(ctx, manifest, manifest+damagedInfix+randomName(), o); err != nil {
		return err
	}
	return b.removeObject(ctx, manifest)
}

// damagedInfix is in the name of the manifest of a checkpoint that was set aside.
const damagedInfix = ".damaged-"

func (b *Bucket) removeObject(ctx context.Context, name string) error {
	err := b.retry(ctx, "remove", name, 0, func(ctx context.Context) error {
		return b.client.RemoveObject(ctx, b.place.bucket, b.key(name), minio.RemoveObjectOptions{})
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Remove is as in [storage.Storage]: manifests go first.
func (b *Bucket) Remove(ctx context.Context, name string) error {
	if err := b.begin(ctx, name); err != nil {
		return err
	}
	b.mu.Lock()
	doubt := b.doubts[name]
	b.mu.Unlock()
	if doubt {
		return fmt.Errorf("storage: %s stays: its commit was not answered, and may still take place", storage.At(b, name))
	}
	// One request finds out whether it is a file or a folder.
	found, err := b.list(ctx, name, false)
	if err != nil {
		return err
	}
	for _, o := range found {
		switch o.Key {
		case b.key(name):
			err = errors.Join(err, b.removeObject(ctx, name))
		case b.key(name) + "/":
			err = errors.Join(err, b.removeFolder(ctx, name))
		}
	}
	return err
}

func (b *Bucket) removeFolder(ctx context.Context, name string) error {
	if err := b.removeObject(ctx, name+"/"+storage.ManifestName); err != nil {
		return err
	}
	objects, err := b.list(ctx, name+"/", true)
	if err != nil {
		return err
	}
	var manifests, others []string // also of the checkpoints in the folder
	for _, o := range objects {
		if n := b.name(o.Key); strings.HasSuffix(n, "/"+storage.ManifestName) {
			manifests = append(manifests, n)
		} else {
			others = append(others, n)
		}
	}
	if err := b.removeAll(ctx, manifests); err != nil {
		return err
	}
	if err := b.removeAll(ctx, others); err != nil {
		return err
	}
	b.giveUpUploads(ctx, name+"/")
	return nil
}

// removeAll removes objects, some at a time.
func (b *Bucket) removeAll(ctx context.Context, names []string) error {
	const numWorkers = 8
	queue := make(chan string)
	errs := make([]error, numWorkers)
	var wg sync.WaitGroup
	for i := range min(numWorkers, len(names)) {
		wg.Go(func() {
			for name := range queue {
				if err := b.removeObject(ctx, name); errs[i] == nil {
					errs[i] = err
				}
			}
		})
	}
	for _, name := range names {
		queue <- name
	}
	close(queue)
	wg.Wait()
	return errors.Join(errs...)
}

// giveUpUploads ends uploads that nobody will complete. Not every server lists
// them, and what cannot be removed harms no checkpoint: errors are not told.
func (b *Bucket) giveUpUploads(ctx context.Context, prefix string) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for u := range b.client.ListIncompleteUploads(ctx, b.place.bucket, b.key(prefix), true) {
		if u.Err != nil {
			return
		}
		b.core.AbortMultipartUpload(ctx, b.place.bucket, u.Key, u.UploadID)
	}
}
