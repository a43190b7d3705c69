// SPDX-License-Identifier: Apache-2.0

package checkpoint_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/safetensors"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/internal/seeded"
)

// saved makes a checkpoint of step 5 with four tensors of more than a chunk, in two files.
func saved(t *testing.T) (dir string) {
	t.Helper()
	rng := rand.New(rand.NewPCG(seeded.Of(t), 0))
	src := &bytesSource{data: map[string][]byte{}}
	for _, name := range []string{"a", "b", "c", "d"} {
		b := make([]byte, 5<<18)
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		src.infos = append(src.infos, safetensors.Info{Name: name, DType: safetensors.U8, Shape: []int{5 << 18}})
		src.data[name] = b
	}
	s := checkpoint.State{Sources: map[string]checkpoint.Source{checkpoint.Model: src},
		Files: func(w *checkpoint.Writer) error { return w.WriteFile("config.json", []byte("{}")) }}
	dir = t.TempDir()
	if err := checkpoint.Rewrite(context.Background(), storage.Dir(dir), 5, s, checkpoint.Rewriting{Ranks: 2}); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestExamine: all damage is found, with file, tensor and byte, and the rest is read.
func TestExamine(t *testing.T) {
	dir := saved(t)
	in := checkpoint.Path(dir, 5)
	c, err := checkpoint.Open(context.Background(), storage.Dir(dir), "")
	if err != nil {
		t.Fatal(err)
	}
	at := map[string]checkpoint.StoredBox{}
	for _, tensor := range c.Manifest().Section(checkpoint.Model).Tensors {
		at[tensor.Name] = tensor.Boxes[0]
	}
	examine := func() (found []string, read, total int64) {
		t.Helper()
		_, err := checkpoint.Examine(context.Background(), storage.Dir(dir), checkpoint.StepName(5), func(d, n int64) { read, total = d, n },
			func(d *checkpoint.DamagedError) { found = append(found, d.File+" "+d.Tensor+" "+d.Problem) })
		if err != nil {
			t.Fatal(err)
		}
		return found, read, total
	}
	if found, read, total := examine(); len(found) > 0 || read != total || total < 20<<18 {
		t.Errorf("a good checkpoint: %q, %d of %d bytes", found, read, total)
	}
	flip := func(file string, byteAt int64) {
		t.Helper()
		b, err := os.ReadFile(filepath.Join(in, file))
		if err != nil {
			t.Fatal(err)
		}
		b[byteAt] ^= 0x10
		if err := os.WriteFile(filepath.Join(in, file), b, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	flip(at["a"].File, at["a"].At+100)
	flip(at["a"].File, at["a"].At+(1<<20)+1)
	flip(at["b"].File, at["b"].At)
	flip(at["a"].File, 20) // in the header
	found, _, _ := examine()
	want := []string{
		fmt.Sprintf("%s a has the checksum * for the 1048576 bytes from %d on", at["a"].File, at["a"].At),
		fmt.Sprintf("%s a has the checksum * for the 262144 bytes from %d on", at["a"].File, at["a"].At+1<<20),
		fmt.Sprintf("%s b has the checksum * for the 1048576 bytes from %d on", at["b"].File, at["b"].At),
	}
	slices.Sort(found)
	if len(found) != 3 {
		t.Errorf("%q, want %q", found, want)
	}
	for i := range min(len(found), len(want)) {
		before, after, _ := strings.Cut(want[i], "*")
		if !strings.HasPrefix(found[i], before) || !strings.Contains(found[i], after) {
			t.Errorf("%q, want %q", found[i], want[i])
		}
	}
	if err := os.Truncate(filepath.Join(in, at["a"].File), at["a"].At+50); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(in, "config.json")); err != nil {
		t.Fatal(err)
	}
	found, _, _ = examine()
	for _, want := range []string{"config.json  cannot be read", at["a"].File + " a has " + fmt.Sprint(at["a"].At+50) + " bytes, its manifest says", at["b"].File + " b has the checksum"} {
		if !slices.ContainsFunc(found, func(f string) bool { return strings.HasPrefix(f, want) }) {
			t.Errorf("%q is not in %q", want, found)
		}
	}
	if err := os.WriteFile(filepath.Join(in, checkpoint.ManifestName), []byte("{"), 0o666); err != nil {
		t.Fatal(err)
	}
	if found, _, _ = examine(); len(found) != 1 || !strings.HasPrefix(found[0], "manifest.json") {
		t.Errorf("a manifest that was cut short: %q", found)
	}
	if _, err := checkpoint.Examine(context.Background(), storage.Dir(dir), checkpoint.StepName(6), nil, nil); !errors.Is(err, checkpoint.ErrNone) {
		t.Errorf("a step that is not there: %v", err)
	}
}

// TestCopy: a copy is the same, and a damaged checkpoint is not copied.
func TestCopy(t *testing.T) {
	dir := saved(t)
	c, err := checkpoint.Open(context.Background(), storage.Dir(dir), "")
	if err != nil {
		t.Fatal(err)
	}
	to := t.TempDir()
	var last int64
	if err := c.Copy(context.Background(), storage.Dir(to), func(n int64) { last = n }); err != nil {
		t.Fatal(err)
	}
	var total int64
	for _, f := range append(c.Files, checkpoint.FileInfo{Name: checkpoint.ManifestName}) {
		a, errA := os.ReadFile(filepath.Join(checkpoint.Path(dir, 5), f.Name))
		b, errB := os.ReadFile(filepath.Join(checkpoint.Path(to, 5), f.Name))
		if errA != nil || errB != nil || !bytes.Equal(a, b) {
			t.Errorf("%s differs: %v, %v", f.Name, errA, errB)
		}
		total += f.Bytes
	}
	if last != total {
		t.Errorf("%d of %d bytes were told", last, total)
	}
	if err := c.Copy(context.Background(), storage.Dir(to), nil); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a second time: %v", err)
	}
	path := filepath.Join(checkpoint.Path(dir, 5), c.Files[1].Name)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)-1] ^= 1
	if err := os.WriteFile(path, b, 0o666); err != nil {
		t.Fatal(err)
	}
	other := t.TempDir()
	var damaged *checkpoint.DamagedError
	if err := c.Copy(context.Background(), storage.Dir(other), nil); !errors.As(err, &damaged) || damaged.File != c.Files[1].Name {
		t.Errorf("a damaged file: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(other, "*")); len(left) > 0 {
		t.Errorf("a failure leaves %q", left)
	}
}

// small is a storage with little space.
type small struct{ storage.Storage }

func (small) Free(context.Context) (int64, bool, error) { return 10, true, nil }

// TestCopySpace: a copy that does not fit is refused before anything is written.
func TestCopySpace(t *testing.T) {
	c, err := checkpoint.Open(t.Context(), storage.Dir(saved(t)), "")
	if err != nil {
		t.Fatal(err)
	}
	to := storage.Dir(t.TempDir())
	var space *checkpoint.SpaceError
	err = c.Copy(t.Context(), small{to}, func(int64) { t.Error("something was copied") })
	if !errors.As(err, &space) || space.Free != 10 || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("%v", err)
	}
	if entries, err := to.List(t.Context(), ""); err != nil || len(entries) > 0 {
		t.Error(entries, err)
	}
}
