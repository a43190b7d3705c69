// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/internal/envvar"
)

// A job that the launcher has started again may find the last of the ranks of
// before still at work in its directory, such as one on a host that was cut off:
// it waits for as long as that rank may take to notice.
const (
	claimPatience = 15 * time.Second
	claimInterval = 100 * time.Millisecond
)

// claim makes the run's directory that of this process.
func claim(ctx context.Context, out string) (release func(), err error) {
	restarts, _ := envvar.RestartCount.IntOr(0, 0, math.MaxInt32)
	for deadline := time.Now().Add(claimPatience); ; {
		release, err = checkpoint.Claim(out)
		if busy := (*storage.BusyError)(nil); !errors.As(err, &busy) || restarts == 0 || time.Now().After(deadline) {
			return release, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(claimInterval):
		}
	}
}

// placeFile is the name of a file in a run's directory that says where the run's checkpoints are,
// if they are not in the directory itself.
const placeFile = "save_to.txt"

// keepPlace notes where the run saves. A run that begins anew, although one in this directory
// saved elsewhere before, is refused: it has most likely been given another place by mistake, and
// would train from the first step again.
func keepPlace(out string, to storage.Storage, beginsAnew bool) error {
	path, place := filepath.Join(out, placeFile), to.String()
	if dir, ok := to.(*storage.Directory); ok && filepath.Clean(dir.String()) == filepath.Clean(out) {
		place = ""
	}
	before, err := os.ReadFile(path)
	was := strings.TrimSpace(string(before))
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	case was == place:
		return nil
	case was != "" && beginsAnew:
		return fmt.Errorf("the run in %s saved its checkpoints in %s before, and there are none in %s: give --save-to %s to go on, or another --out to begin anew", out, was, to, was)
	case place == "":
		return os.Remove(path)
	}
	return os.WriteFile(path, []byte(place+"\n"), 0o666)
}

// checkApart reports a run's directory that is among its data, which would change
// as the run saves, or that of the model that it begins with. task is for errors.
func checkApart(task, out, data, initFrom string) error {
	place := func(path string) string {
		rest := ""
		for {
			if real, err := filepath.EvalSymlinks(path); err == nil {
				path = real
				break
			}
			parent := filepath.Dir(path)
			if parent == path {
				break
			}
			path, rest = parent, filepath.Join(filepath.Base(path), rest)
		}
		path, err := filepath.Abs(filepath.Join(path, rest))
		if err != nil {
			return ""
		}
		return path
	}
	at := place(out)
	if data != "" {
		rel, err := filepath.Rel(place(data), at)
		if first, _, _ := strings.Cut(filepath.ToSlash(rel), "/"); err == nil && first != ".." && (first == "." || !strings.HasPrefix(first, ".")) {
			return fmt.Errorf("train %s: --out %s lies in --data %s: what the run saves would change its data; give another --out", task, out, data)
		}
	}
	if initFrom != "" && place(initFrom) == at {
		return fmt.Errorf("train %s: --out and --init-from are both %s: give another --out, the model stays as it is", task, out)
	}
	return nil
}

// CheckOut reports what a run could not begin with: another one that is at work
// in its directory, or a directory that cannot be written, or made if it is not
// there; for the first checkpoint is saved when hours may have been spent on it.
// It leaves nothing behind. task is for errors.
func CheckOut(task, out string) error {
	if info, err := os.Stat(out); err == nil && info.IsDir() {
		release, err := checkpoint.Claim(out)
		if err != nil {
			return fmt.Errorf("train %s: %w", task, err)
		}
		defer release()
	}
	dir := filepath.Clean(out)
	for {
		_, err := os.Stat(dir)
		if parent := filepath.Dir(dir); errors.Is(err, fs.ErrNotExist) && parent != dir {
			dir = parent
			continue
		}
		break
	}
	f, err := os.CreateTemp(dir, ".cohort-*")
	if err == nil {
		f.Close()
		err = os.Remove(f.Name())
	}
	if err != nil {
		return fmt.Errorf("train %s: checkpoints cannot be saved in %s: %w; give another --out", task, out, err)
	}
	return nil
}
