// SPDX-License-Identifier: Apache-2.0

package dlopen

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Place is where libraries are looked for.
type Place struct {
	// Dir is a directory, or a pattern of directories as of [filepath.Glob]. An empty one is
	// the system's loader with its own list of directories.
	Dir string
	// Why says whose place it is, such as "of COHORT_CUDA_PATH".
	Why string
}

func (p Place) String() string {
	switch {
	case p.Dir == "":
		return "the system's loader"
	case p.Why == "":
		return p.Dir
	}
	return p.Dir + " (" + p.Why + ")"
}

// NotFoundError says that no place has a library.
type NotFoundError struct {
	Names  []string
	Places []Place
}

func (e *NotFoundError) Error() string {
	places := make([]string, len(e.Places))
	for i, p := range e.Places {
		places[i] = p.String()
	}
	return fmt.Sprintf("%s is not found in %s", strings.Join(e.Names, " or "), strings.Join(places, ", "))
}

// Search opens the first library of names that is in one of the places: in the first place
// that has one of them. A file that is there and cannot be loaded is an error, not a reason
// to look further. Handlers of signals that the library has replaced are put back; what it
// replaces when it is initialised, its user puts back. If there is none, the error is a
// [*NotFoundError].
func Search(names []string, places []Place) (*Library, error) {
	if !Built {
		return nil, ErrNotBuilt
	}
	handlers := SaveHandlers()
	lib, err := search(names, places)
	_, restored := handlers.Restore()
	return lib, errors.Join(err, restored)
}

func search(names []string, places []Place) (*Library, error) {
	for _, p := range places {
		if p.Dir == "" {
			for _, name := range names {
				if lib, err := Open(name); err == nil {
					return lib, nil
				}
			}
			continue
		}
		path, err := locate(names, p.Dir)
		if err != nil {
			return nil, err
		}
		if path == "" {
			continue
		}
		lib, err := Open(path)
		if err != nil {
			return nil, fmt.Errorf("%s cannot be loaded: %w", path, err)
		}
		return lib, nil
	}
	return nil, &NotFoundError{names, places}
}

// locate returns the path of the first of names in a directory, or in those of a pattern; ""
// if there is none. A directory that does not exist has none.
func locate(names []string, pattern string) (string, error) {
	dirs := []string{pattern}
	if strings.ContainsAny(pattern, "*?[") {
		var err error
		if dirs, err = filepath.Glob(pattern); err != nil {
			return "", fmt.Errorf("the pattern of directories %q: %w", pattern, err)
		}
	}
	for _, dir := range dirs {
		for _, name := range names {
			path, err := filepath.Abs(filepath.Join(dir, name))
			if err != nil {
				return "", err
			}
			_, err = os.Stat(path)
			switch {
			case err == nil:
				return path, nil
			case !errors.Is(err, fs.ErrNotExist):
				return "", err
			}
		}
	}
	return "", nil
}
