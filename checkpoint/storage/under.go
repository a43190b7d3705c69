// SPDX-License-Identifier: Apache-2.0

package storage

import "context"

// Under returns the storage whose names are those of s in a folder: what it calls
// "step-8" is folder/step-8 of s. It has a lock of its own if s is a Directory. It
// panics if folder is no name, see [CheckName].
func Under(s Storage, folder string) Storage {
	if err := CheckName(folder); err != nil {
		panic(err)
	}
	if s, ok := s.(interface{ Under(folder string) Storage }); ok {
		return s.Under(folder)
	}
	return &under{s, folder}
}

// Under returns the directory of a folder, see the function [Under].
func (d *Directory) Under(folder string) Storage {
	return &Directory{path: d.Path(folder), disk: d.disk}
}

// under is a storage within any other.
type under struct {
	s      Storage
	folder string
}

func (u *under) String() string { return At(u.s, u.folder) }

// name returns the name in the outer storage. What is no name stays none.
func (u *under) name(name string) string {
	if CheckName(name) != nil {
		return name
	}
	return u.folder + "/" + name
}

func (u *under) List(ctx context.Context, folder string) ([]Entry, error) {
	if folder == "" {
		return u.s.List(ctx, u.folder)
	}
	return u.s.List(ctx, u.name(folder))
}

func (u *under) Open(ctx context.Context, name string) (Object, error) {
	return u.s.Open(ctx, u.name(name))
}

func (u *under) Stage(name, id string) (stage, folder string) {
	stage, folder = u.s.Stage(u.name(name), id)
	return stage[len(u.folder)+1:], folder
}

func (u *under) Create(ctx context.Context, name string) (File, error) {
	return u.s.Create(ctx, u.name(name))
}

func (u *under) Link(ctx context.Context, from, to string) error {
	return u.s.Link(ctx, u.name(from), u.name(to))
}

func (u *under) Commit(ctx context.Context, stage, name string, manifest []byte) error {
	return u.s.Commit(ctx, u.name(stage), u.name(name), manifest)
}

func (u *under) Replace(ctx context.Context, stage, name string, manifest []byte) error {
	return u.s.Replace(ctx, u.name(stage), u.name(name), manifest)
}

func (u *under) Remove(ctx context.Context, name string) error {
	return u.s.Remove(ctx, u.name(name))
}

func (u *under) SetAside(ctx context.Context, name string) error {
	return u.s.SetAside(ctx, u.name(name))
}

func (u *under) Free(ctx context.Context) (bytes int64, known bool, err error) { return u.s.Free(ctx) }

func (u *under) Lock(ctx context.Context) (release func(), held bool, err error) {
	return u.s.Lock(ctx)
}
