// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/cohort-ml/cohort/monitor/history"
)

// Running is a job of this user that runs on this machine.
type Running struct {
	PID   int             `json:"pid"` // of the launcher
	Begun history.Seconds `json:"begun"`
	Title string          `json:"title"`
	Runs  []string        `json:"runs,omitempty"` // directories
	URL   string          `json:"url,omitempty"`  // of the page, with its token
}

// maxRunning is how many bytes of a file about a job are read.
const maxRunning = 64 << 10

// registry is the directory in which launchers of this user say that they run.
func registry() string {
	return filepath.Join(os.TempDir(), fmt.Sprintf("cohort-jobs-%d", os.Getuid()))
}

// openRegistry opens the directory, if it is this user's alone.
func openRegistry() (*os.Root, error) {
	info, err := os.Lstat(registry())
	if err != nil {
		return nil, err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); !info.IsDir() || info.Mode().Perm()&0o077 != 0 || ok && int(st.Uid) != os.Getuid() {
		return nil, fmt.Errorf("%s is not a directory of this user alone: remove it", registry())
	}
	return os.OpenRoot(registry())
}

// Register says that a job runs, so that Jobs of this user finds it, until the function that it
// returns is called. A job that cannot say so runs all the same.
func Register(r Running) (end func(), err error) {
	text, err := json.Marshal(r)
	if err != nil {
		return func() {}, fmt.Errorf("dashboard: %w", err)
	}
	name := strconv.Itoa(r.PID) + ".json"
	for range 3 { // a job that ends may remove the empty directory
		if err = enter(name, text); !errors.Is(err, os.ErrNotExist) {
			break
		}
	}
	if err != nil {
		return func() {}, fmt.Errorf("dashboard: %w", err)
	}
	return func() {
		_ = os.Remove(filepath.Join(registry(), name))
		_ = os.Remove(registry()) // where it was the last
	}, nil
}

// enter writes the file of a job.
func enter(name string, text []byte) error {
	if err := os.Mkdir(registry(), 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	dir, err := openRegistry()
	if err != nil {
		return err
	}
	defer dir.Close()
	f, err := dir.OpenFile("."+name, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	return dir.Rename("."+name, name)
}

// Jobs returns the jobs of this user on this machine, the last that began first. What is left of
// launchers that were killed is removed.
func Jobs() ([]Running, error) {
	dir, err := openRegistry()
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("dashboard: %w", err)
	}
	defer dir.Close()
	entries, err := os.ReadDir(registry())
	if err != nil {
		return nil, fmt.Errorf("dashboard: %w", err)
	}
	var all []Running
	for _, e := range entries {
		number, ok := strings.CutSuffix(e.Name(), ".json")
		pid, err := strconv.Atoi(number)
		if !ok || err != nil || pid < 1 {
			continue
		}
		if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			_ = dir.Remove(e.Name())
			continue
		}
		f, err := dir.Open(e.Name())
		if err != nil {
			continue // it has just ended
		}
		text, err := io.ReadAll(io.LimitReader(f, maxRunning))
		_ = f.Close()
		var r Running
		if err == nil && json.Unmarshal(text, &r) == nil && r.PID == pid {
			all = append(all, r)
		}
	}
	slices.SortFunc(all, func(a, b Running) int { return int(b.Begun - a.Begun) })
	return all, nil
}
