// SPDX-License-Identifier: Apache-2.0

// Package storage is where the checkpoints of a run lie: a directory, or the
// objects of a bucket under a prefix. A [Storage] knows files, folders and one
// thing more: how a folder of files becomes a checkpoint at one instant.
//
// The files of a checkpoint are written into a stage ([Storage.Stage]). There
// they are nobody's checkpoint. [Storage.Commit] writes the manifest last and
// makes the stage the checkpoint. Before that instant the checkpoint does not
// exist, after it the checkpoint exists whole. A folder is a checkpoint if and
// only if it has a manifest ([ManifestName]) and no stage's name.
//
// A [Directory] commits by a rename. Everything in the stage is durable before
// the rename (fsync of each file and of the folder), and the rename is durable
// before Commit returns (fsync of the parent). So a kill, a full disk or a power
// failure leaves the checkpoints before it as they were, and at most a stage.
//
// Names are relative and have slashes: "step-00000008/model.safetensors". The
// empty name is the storage itself. Names that lead out of it are refused.
//
// The ranks of a job have a Storage each, all of the same place. They write
// different files of a stage at the same time. One of them calls Commit when all
// have closed their files.
//
// # Shared directories
//
// A Directory may lie on a network file system that several machines mount. What
// it needs of NFS (v3 and v4) is this:
//
//   - A rename within one server is one instant for all clients, and survives the
//     server's crash when it was answered. The stage and the checkpoint have the
//     same parent, so they have the same server.
//   - Close-to-open consistency: what a rank wrote, synced and closed is seen by
//     a rank that opens the file later. Commit is called after all ranks have
//     closed their files.
//   - A client may send a rename again when its answer was lost. The second one
//     then fails with "no such file" although the first one has taken place. So
//     Commit looks at what is in place before it believes that error: if the
//     manifest there is its own, the checkpoint is committed.
//   - Clients remember for some seconds (acregmax, acdirmax) which names a
//     directory has. A checkpoint may be seen late by List of another machine, and
//     one that was removed may still be listed. Open then says fs.ErrNotExist.
//   - Mounts with "soft" may lose writes on a timeout; the error comes at Close.
//     Exports with "async" answer before data is durable. Use "hard" and "sync".
//   - Locks of mounts with "nolock" are known to one machine only.
//
// Caveats. A Storage may be used by several goroutines; a [File] by one at a time;
// an [Object] by several. An Object stays readable while its file is removed on a
// Directory, but not on other storages. Files are never changed in place: [Storage.Link]
// relies on it. The zero value of Directory is not usable, call [Dir].
package storage

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"time"
)

// ManifestName is the file that makes a folder a checkpoint. [Storage.Commit]
// writes it.
const ManifestName = "manifest.json"

// Storage is where a run's checkpoints lie. The package's documentation says how
// a checkpoint comes to be. Errors name the storage and the file, and wrap
// [fs.ErrNotExist], [fs.ErrExist] and [fs.ErrPermission] where they are such. Those of
// servers that do not answer are a [*ServerError].
type Storage interface {
	// String returns the place as the user gave it, for messages: a path, or an
	// address without its parameters. It has no secrets.
	String() string

	// List returns what lies in a folder, by name, one level deep. "" is the
	// storage itself. A folder that is not there is empty.
	List(ctx context.Context, folder string) ([]Entry, error)

	// Open opens a file for reading.
	Open(ctx context.Context, name string) (Object, error)

	// Stage says where the files of the checkpoint name are written before it is
	// committed: under stage. Afterwards they lie in name, or in the folder folder
	// of it if that is not empty. id is different for each save.
	Stage(name, id string) (stage, folder string)

	// Create begins a file and makes the folders that it needs. The file is
	// visible and durable when Close has returned nil; then it has taken the place
	// of a file of that name. The end of ctx ends the writing.
	Create(ctx context.Context, name string) (File, error)

	// Link gives the bytes of the file from a second name, to, which must be free.
	// No byte passes through this process where the storage can do without.
	Link(ctx context.Context, from, to string) error

	// Commit makes the files of a stage the checkpoint name, with this manifest.
	// The error wraps [fs.ErrExist] if there is a checkpoint of that name, which
	// is then untouched. A [CommittedError] says that the checkpoint is in place
	// and that something failed afterwards. A [DoubtError] says that it may be in
	// place now or later. After any other error it is not in place.
	Commit(ctx context.Context, stage, name string, manifest []byte) error

	// Replace is Commit where the new checkpoint takes the place of one of its name, at one
	// instant where the file system can. What the old one had in its stage's folder stays for
	// the caller to remove, in storages where that lies in the checkpoint. After an error that
	// is neither a [CommittedError] nor a [DoubtError] the old one is as it was.
	Replace(ctx context.Context, stage, name string, manifest []byte) error

	// Remove removes a file, or a folder with all that is in it. A checkpoint stops
	// being one before its first file goes. It is no error if nothing is there.
	Remove(ctx context.Context, name string) error

	// SetAside makes a damaged checkpoint one that no longer has its name, so that
	// its owner can look at it and its name is free: name.damaged-RANDOM.
	SetAside(ctx context.Context, name string) error

	// Free returns how many bytes can still be written, if that is known.
	Free(ctx context.Context) (bytes int64, known bool, err error)

	// Lock keeps other savers away until release. The error is a [*BusyError]
	// while somebody else holds the lock. Held is false where the storage has no
	// locks: then others may be at work, and their stages must be left alone.
	Lock(ctx context.Context) (release func(), held bool, err error)
}

// Entry is a file or a folder in a list.
type Entry struct {
	Name     string // without the folder
	Size     int64  // bytes of a file
	IsFolder bool
	// IsLink: a symbolic link of a directory. The other fields are those of what
	// it leads to. No save makes such a link.
	IsLink   bool
	Modified time.Time // zero if not known
}

// Object is a file that is open for reading, by several goroutines if need be.
type Object interface {
	io.ReaderAt
	io.Closer
	// Size returns the file's number of bytes, which does not change.
	Size() int64
}

// ReadBytes returns how much of an object is best read at a time by who sums what it has read. Of
// a file of this machine that is little: then the bytes are summed before they leave the processor's
// cache. Of others it is much, as each read asks a server.
func ReadBytes(o Object) int {
	if o, ok := o.(interface{ ReadBytes() int }); ok {
		return o.ReadBytes()
	}
	return 8 << 20
}

// File is a file that is being written.
type File interface {
	io.Writer
	// Close makes the file visible and durable. After an error the file counts as
	// not written, whether or not it is there.
	Close() error
	// Abort gives the file up and leaves nothing of it. After Close it does nothing.
	Abort()
}

// ReadFile returns the bytes of a file that must have at most limit bytes.
func ReadFile(ctx context.Context, s Storage, name string, limit int64) ([]byte, error) {
	o, err := s.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	defer o.Close()
	if o.Size() > limit {
		return nil, fmt.Errorf("storage: %s has %d bytes, more than the %d allowed: %w", At(s, name), o.Size(), limit, fs.ErrInvalid)
	}
	b := make([]byte, o.Size())
	if n, err := o.ReadAt(b, 0); n < len(b) {
		return nil, fmt.Errorf("storage: reading %s at byte %d: %w", At(s, name), n, err)
	}
	return b, nil
}

// WriteFile writes a whole file, see [Storage.Create].
func WriteFile(ctx context.Context, s Storage, name string, data []byte) error {
	f, err := s.Create(ctx, name)
	if err != nil {
		return err
	}
	defer f.Abort()
	if _, err := f.Write(data); err != nil {
		return err
	}
	return f.Close()
}

// At returns where a file lies, for messages.
func At(s Storage, name string) string {
	if name == "" {
		return s.String()
	}
	return strings.TrimSuffix(s.String(), "/") + "/" + name
}

// CheckName returns an error unless name is one that a [Storage] takes: relative,
// with slashes, not out of the storage, and the same on every system.
func CheckName(name string) error {
	if name == "." || !fs.ValidPath(name) || strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == '\\' || r == ':' || r == 0x7f }) {
		return fmt.Errorf("storage: %q is no name for a file: it must be relative, with slashes, without %q, colons, backslashes and control characters: %w", name, "..", fs.ErrInvalid)
	}
	return nil
}
