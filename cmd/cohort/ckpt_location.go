// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/checkpoint/anyformat"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/checkpoint/storage/s3"
	"github.com/cohort-ml/cohort/checkpoint/storage/web"
)

// fileEndings are those of names that are files of a store, in which a prefix and a file
// cannot be told apart without a request.
var fileEndings = []string{".safetensors", ".pt", ".pth", ".bin", ".ckpt"}

// locate finds out whether an argument names a file or a folder, in which storage.
func locate(arg string) (anyformat.Location, error) {
	at := anyformat.Location{Text: arg}
	if arg == "" {
		return at, usageError{errors.New("a checkpoint has the empty name")}
	}
	if scheme, _, ok := strings.Cut(arg, "://"); ok {
		return locateRemote(scheme, arg)
	}
	st, err := os.Stat(arg)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return at, &anyformat.AccessError{Location: arg, Problem: "does not exist", Err: fs.ErrNotExist}
	case errors.Is(err, fs.ErrPermission):
		return at, &anyformat.AccessError{Location: arg, Problem: "may not be read by this user", Err: err}
	case err != nil:
		return at, err
	case !st.IsDir() && !st.Mode().IsRegular():
		return at, fmt.Errorf("%s is neither a file nor a folder (%s)", arg, st.Mode().Type())
	}
	return locatePath(arg, st.IsDir())
}

// locatePath returns the location of a path of this machine.
func locatePath(arg string, isFolder bool) (anyformat.Location, error) {
	at := anyformat.Location{Text: arg}
	full, err := filepath.Abs(arg)
	if err != nil {
		return at, err
	}
	// Errors name files as the user would.
	parent := filepath.Dir(arg)
	if base := filepath.Base(arg); base == "." || base == ".." {
		parent = filepath.Dir(full)
	}
	at.Parent, at.Name = storage.Dir(parent), filepath.Base(full)
	if isFolder {
		at.Inside = storage.Dir(arg)
	}
	return at, nil
}

// locateRemote returns the location of an address.
func locateRemote(scheme, arg string) (anyformat.Location, error) {
	at := anyformat.Location{Text: arg}
	var open func(address string) (storage.Storage, error)
	switch scheme {
	case "s3":
		open = func(address string) (storage.Storage, error) { return s3.Open(address) }
	case "http", "https":
		open = func(address string) (storage.Storage, error) { return web.Open(address) }
	default: // without the address, which may have a secret
		return at, usageError{fmt.Errorf("checkpoints lie in directories and at s3://, http:// and https://, not at %s://", scheme)}
	}
	address, query, hasQuery := strings.Cut(arg, "?")
	if hasQuery {
		query = "?" + query
	}
	address = strings.TrimSuffix(address, "/")
	var err error
	if parent, name := path.Split(address); !strings.HasSuffix(parent, "://") {
		if at.Parent, err = open(strings.TrimSuffix(parent, "/") + query); err != nil {
			return at, usageError{err}
		}
		at.Name = name
	}
	if at.Parent != nil && slices.Contains(fileEndings, path.Ext(at.Name)) {
		at.Text = storage.At(at.Parent, at.Name) // without what only the request needs
		return at, nil
	}
	if at.Inside, err = open(address + query); err != nil {
		return at, usageError{err}
	}
	at.Text = at.Inside.String()
	return at, nil
}

// locateOutput returns the location of something that is to be written.
func locateOutput(arg string) (anyformat.Location, error) {
	if arg == "" {
		return anyformat.Location{}, usageError{errors.New("the output has the empty name")}
	}
	if scheme, _, ok := strings.Cut(arg, "://"); ok {
		if scheme == "http" || scheme == "https" {
			return anyformat.Location{}, usageError{errors.New("a web server is only read: write to a directory or to an address s3://")}
		}
		return locateRemote(scheme, arg)
	}
	st, err := os.Stat(arg)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return anyformat.Location{}, err
	}
	return locatePath(arg, err != nil || st.IsDir())
}

// locateRun returns the storage of a run.
func locateRun(ctx context.Context, arg string) (storage.Storage, error) {
	at, err := locate(arg)
	if err != nil {
		return nil, err
	}
	kind, err := anyformat.Recognize(ctx, at)
	if err != nil {
		return nil, err
	}
	if kind != anyformat.Run {
		return nil, fmt.Errorf("%s is a %s, not a run: give the folder that has its steps", arg, kind)
	}
	return at.Inside, nil
}
