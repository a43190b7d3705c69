// SPDX-License-Identifier: Apache-2.0

package storagetest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint/storage"
)

// ErrOff is the error of each operation on a [Machine] that is off.
var ErrOff = errors.New("the machine is off")

// Machine is a machine whose disk fails, and whose power does. Its directories
// are real ones. It notes what is not durable yet: the bytes of files that were
// written to and not synced, and the names that were made, changed or removed in
// a folder that was not synced since. [Machine.Restart] loses some of that.
//
// A Machine may be used by several goroutines. It does one operation at a time.
type Machine struct {
	mu      sync.Mutex
	r       *rand.Rand
	attic   string // what was removed and may come back
	numSafe int    // files in the attic, ever

	failAt  int // the number of the operation that fails; -1: none
	failure error
	off     bool // from failAt on
	ops     []storage.Op

	dirty   map[string]bool     // files with bytes that may be lost
	pending map[string][]change // by folder: changes that may be undone, oldest first
}

// change is a change of a folder that is not durable.
type change struct {
	kind     string
	path, to string
	saved    string // in the attic: what was removed or replaced; "" for a folder
}

// NewMachine returns a machine whose losses are those of a seed.
func NewMachine(t testing.TB, seed uint64) *Machine {
	return &Machine{
		r: rand.New(rand.NewPCG(seed, 19)), attic: t.TempDir(), failAt: -1,
		dirty: map[string]bool{}, pending: map[string][]change{},
	}
}

// Dir returns a directory of the machine.
func (m *Machine) Dir(path string) *storage.Directory {
	return storage.Dir(path, storage.WithHook(m.Do))
}

// FailAt has the n-th change from now, counted from 0, fail with err, as on a
// full or a broken disk. n < 0: none.
func (m *Machine) FailAt(n int, err error) { m.arm(n, err, false) }

// StopAt has the machine stop before the n-th change from now: no operation takes
// place until Restart. n < 0: it goes on.
func (m *Machine) StopAt(n int) { m.arm(n, ErrOff, true) }

func (m *Machine) arm(n int, err error, off bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failAt, m.failure, m.off, m.ops = n, err, off, nil
}

// Ops returns the changes since the last call of FailAt or StopAt.
func (m *Machine) Ops() []storage.Op {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.ops)
}

// Numbers is how much a Restart has lost.
type Numbers struct {
	TornFiles     int // files that lost bytes
	UndoneChanges int // names that were made, changed or removed in vain
}

// Restart turns the machine on again. If powerFailed, what was not durable is lost
// at random: of each file that was not synced all, the end, or some pages; of the
// changes of each folder that was not synced the last ones. Else nothing is lost,
// as after a kill.
func (m *Machine) Restart(powerFailed bool) Numbers {
	m.mu.Lock()
	defer m.mu.Unlock()
	var n Numbers
	if powerFailed {
		n.TornFiles = m.tear()
		n.UndoneChanges = m.undo()
	}
	m.failAt, m.off, m.ops = -1, false, nil
	clear(m.dirty)
	clear(m.pending)
	return n
}

func isChange(kind string) bool {
	return kind != storage.OpOpen && kind != storage.OpRead && kind != storage.OpList
}

// Do is the hook of the machine's directories, for [storage.WithHook]: it does an
// operation, or fails.
func (m *Machine) Do(op storage.Op, do func() error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := len(m.ops)
	if isChange(op.Kind) {
		m.ops = append(m.ops, op)
	}
	if m.failAt >= 0 && (n == m.failAt && isChange(op.Kind) || m.off && n >= m.failAt) {
		if op.Kind == storage.OpWrite {
			m.dirty[op.Path] = true // half of it
		}
		return m.failure
	}
	folder := filepath.Dir(op.Path)
	c := change{kind: op.Kind, path: op.Path, to: op.To}
	var err error
	switch op.Kind {
	case storage.OpRename:
		c.saved = m.save(op.To)
	case storage.OpRemove:
		c.saved = m.save(op.Path)
	}
	switch op.Kind {
	case storage.OpSync: // the kernel need not: what is durable stands in the notes
	case storage.OpSyncDir:
		_, err = os.Stat(op.Path)
	default:
		err = do()
	}
	if err != nil {
		return err
	}
	switch op.Kind {
	case storage.OpWrite:
		m.dirty[op.Path] = true
	case storage.OpSync:
		delete(m.dirty, op.Path)
	case storage.OpSyncDir:
		delete(m.pending, op.Path)
	case storage.OpMkdir:
		delete(m.pending, op.Path)
		m.pending[folder] = append(m.pending[folder], c)
	case storage.OpCreate, storage.OpLink, storage.OpRemove:
		if op.Kind == storage.OpLink {
			folder = filepath.Dir(op.To)
		}
		m.pending[folder] = append(m.pending[folder], c)
		if m.dirty[op.Path] && c.saved != "" {
			delete(m.dirty, op.Path)
			m.dirty[c.saved] = true
		}
	case storage.OpRename:
		if filepath.Dir(op.To) != folder {
			return fmt.Errorf("storagetest: a rename from %s to %s, out of its folder", op.Path, op.To)
		}
		m.pending[folder] = append(m.pending[folder], c)
		m.moved(op.Path, op.To)
	}
	return nil
}

// save keeps a file that is about to go, and returns where; "" if there is none,
// or if it is a folder.
func (m *Machine) save(path string) string {
	st, err := os.Lstat(path)
	if err != nil || st.IsDir() {
		return ""
	}
	m.numSafe++
	saved := filepath.Join(m.attic, fmt.Sprint(m.numSafe))
	if err := os.Link(path, saved); err != nil {
		panic(err)
	}
	return saved
}

// moved follows a rename in the notes.
func (m *Machine) moved(from, to string) {
	under := func(path string) (string, bool) {
		rest, ok := strings.CutPrefix(path, from)
		return to + rest, ok && (rest == "" || rest[0] == filepath.Separator)
	}
	for path := range m.dirty {
		if p, ok := under(path); ok {
			delete(m.dirty, path)
			m.dirty[p] = true
		}
	}
	for folder, changes := range m.pending {
		p, ok := under(folder)
		if !ok {
			continue
		}
		for i := range changes {
			changes[i].path, _ = under(changes[i].path)
			if changes[i].to != "" {
				changes[i].to, _ = under(changes[i].to)
			}
		}
		delete(m.pending, folder)
		m.pending[p] = changes
	}
}

// tear loses bytes of the files that were not synced.
func (m *Machine) tear() (numTorn int) {
	const page = 4096
	for _, path := range sorted(m.dirty) {
		b, err := os.ReadFile(path)
		if err != nil || len(b) == 0 {
			continue
		}
		switch m.r.IntN(4) {
		case 0: // all survives
			continue
		case 1:
			b = nil
		case 2:
			b = b[:m.r.IntN(len(b))]
		case 3: // the size is known, some pages never came
			for at := 0; at < len(b); at += page {
				if m.r.IntN(2) == 0 {
					clear(b[at:min(at+page, len(b))])
				}
			}
		}
		// In place: the file may have other names.
		if err := os.WriteFile(path, b, 0o666); err != nil {
			panic(err)
		}
		numTorn++
	}
	return numTorn
}

// undo takes the last changes of each folder back, parents before children: a
// folder that never was has no changes, and one that is called as before has its
// changes under that name.
func (m *Machine) undo() (numUndone int) {
	done := map[string]bool{}
	for {
		folders := slices.DeleteFunc(sorted(m.pending), func(f string) bool { return done[f] })
		if len(folders) == 0 {
			return numUndone
		}
		slices.SortStableFunc(folders, func(a, b string) int {
			return strings.Count(a, string(filepath.Separator)) - strings.Count(b, string(filepath.Separator))
		})
		folder := folders[0]
		done[folder] = true
		if _, err := os.Stat(folder); err != nil {
			continue
		}
		changes := m.pending[folder]
		keep := m.r.IntN(len(changes) + 1)
		if m.r.IntN(3) == 0 {
			keep = 0
		}
		for _, c := range slices.Backward(changes[keep:]) {
			m.undoOne(c)
			numUndone++
		}
	}
}

func (m *Machine) undoOne(c change) {
	var err error
	switch c.kind {
	case storage.OpMkdir, storage.OpCreate:
		err = os.RemoveAll(c.path)
	case storage.OpLink:
		err = os.Remove(c.to)
	case storage.OpRemove:
		if c.saved == "" {
			err = os.Mkdir(c.path, 0o777)
		} else {
			err = os.Link(c.saved, c.path)
		}
	case storage.OpRename:
		if err = os.Rename(c.to, c.path); err == nil {
			m.moved(c.to, c.path)
			if c.saved != "" {
				err = os.Link(c.saved, c.to)
			}
		}
	}
	if err != nil {
		panic(fmt.Sprintf("storagetest: undoing %v: %v", c, err))
	}
}

func sorted[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
