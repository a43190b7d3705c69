// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint/safetensors"
)

// contents writes the files of a step: enough of them, and large enough, that
// an operation of every kind happens more than once.
func contents(step int) func(*Writer) error {
	return func(w *Writer) error {
		data := make([]byte, writeBytes+100_000) // two pieces
		for i := range 1009 {
			data[i] = byte(i*step + i>>8)
		}
		for n := 1009; n < len(data); n *= 2 {
			copy(data[n:], data[:n])
		}
		tensors := []safetensors.Tensor{
			{Info: safetensors.Info{Name: "w", DType: safetensors.U8, Shape: []int{len(data)}}, Data: data},
			{Info: safetensors.Info{Name: "b", DType: safetensors.F32, Shape: []int{1}}, Data: data[:4]},
		}
		if err := w.WriteSafetensors(ModelFile, tensors, nil); err != nil {
			return err
		}
		if err := w.WriteFile("empty", nil); err != nil {
			return err
		}
		return w.WriteProgress(Progress{Step: step, Seed: 1, Fingerprint: Fingerprint(nil)})
	}
}

func mustSave(t testing.TB, dir string, step, keep int) {
	t.Helper()
	if err := Save(t.Context(), dir, step, contents(step), keep); err != nil {
		t.Fatal(err)
	}
}

// checkGood fails unless the latest checkpoint is that of step, with the
// content of that step and none passed over.
func checkGood(t testing.TB, dir string, step int) {
	t.Helper()
	c, damaged, err := Latest(context.Background(), dir)
	if err != nil || len(damaged) != 0 {
		t.Fatalf("latest: %v, damaged %v, want step %d", err, damaged, step)
	}
	p, err := c.ReadProgress()
	if err != nil || c.Step != step || p.Step != step {
		t.Fatalf("latest is of step %d (progress %d, %v), want %d", c.Step, p.Step, err, step)
	}
}

func names(t testing.TB, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestSaveAndLoad(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "deep", "run")
	if _, _, err := Latest(t.Context(), dir); !errors.Is(err, ErrNone) {
		t.Errorf("no directory: %v", err)
	}
	want := Progress{Step: 7, Epoch: 2, Seed: -5, Fingerprint: "f", Loader: json.RawMessage(`{"at":1}`),
		Generators: map[string]json.RawMessage{"dropout": json.RawMessage(`[1,2]`)}, Recipe: json.RawMessage(`"r"`)}
	err := Save(t.Context(), dir, 7, func(w *Writer) error {
		if w.Step() != 7 {
			t.Errorf("the writer's step is %d", w.Step())
		}
		f, err := w.Create("parts.txt")
		if err != nil {
			return err
		}
		for i := range 100_000 { // small writes are gathered, large ones are not
			if _, err := fmt.Fprintf(f, "%d\n", i); err != nil {
				return err
			}
			if i == 50_000 {
				if _, err := f.Write(make([]byte, 3*smallBytes)); err != nil {
					return err
				}
			}
		}
		if err := f.Close(); err != nil {
			return err
		}
		return contents(7)(w)
	}, 0)
	if err != nil {
		t.Fatal(err)
	}
	err = Save(t.Context(), dir, 8, func(w *Writer) error {
		want := want
		want.Step = 8
		return w.WriteProgress(want)
	}, 0)
	if err != nil {
		t.Fatal(err)
	}
	c, err := Open(t.Context(), Path(dir, 7))
	if err != nil {
		t.Fatal(err)
	}
	b, err := c.ReadFile("parts.txt", 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	if lines := strings.Split(strings.ReplaceAll(string(b), "\x00", ""), "\n"); len(lines) != 100_001 || lines[99_999] != "99999" || lines[50_001] != "50001" {
		t.Errorf("parts.txt has %d lines", len(lines))
	}
	if _, err := c.ReadFile("parts.txt", 10); err == nil {
		t.Error("a file larger than the limit was read")
	}
	f, err := c.OpenSafetensors(ModelFile)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if f.Metadata()["format"] != "pt" || len(f.Entries()) != 2 {
		t.Errorf("metadata %v, %d tensors", f.Metadata(), len(f.Entries()))
	}
	latest, _, err := Latest(t.Context(), dir)
	if err != nil || latest.Step != 8 {
		t.Fatalf("latest is %v, %v", latest, err)
	}
	got, err := latest.ReadProgress()
	want.Step = 8
	if err != nil || !strings.Contains(string(got.Loader), `"at": 1`) || got.Seed != -5 || got.Epoch != 2 || len(got.Generators) != 1 || string(got.Recipe) != `"r"` {
		t.Errorf("progress %+v, %v", got, err)
	}
	// A checkpoint's own directory will do, copied under whatever name.
	other := filepath.Join(dir, "copy")
	if err := os.Rename(Path(dir, 7), other); err != nil {
		t.Fatal(err)
	}
	if c, _, err := Latest(t.Context(), other); err != nil || c.Step != 7 {
		t.Errorf("the copy: %v", err)
	}
	if _, err := latest.OpenSafetensors(ModelFile); err == nil || !strings.Contains(err.Error(), ProgressFile) {
		t.Errorf("a file that is not there: %v", err)
	}
}

func TestPrune(t *testing.T) {
	dir := t.TempDir()
	for _, step := range []int{5, 10, 15} {
		mustSave(t, dir, step, 0)
	}
	mustSave(t, dir, 99, 0) // of a run that was set back
	// 15 is damaged: it does not count, and is younger than the oldest kept.
	if err := os.Remove(filepath.Join(Path(dir, 15), ModelFile)); err != nil {
		t.Fatal(err)
	}
	mustSave(t, dir, 20, 2)
	if got, want := names(t, dir), []string{"step-00000010", "step-00000015", "step-00000020", "step-00000099"}; !slices.Equal(got, want) {
		t.Errorf("kept %v, want %v", got, want)
	}
	mustSave(t, dir, 25, 1)
	if got, want := names(t, dir), []string{"step-00000025", "step-00000099"}; !slices.Equal(got, want) {
		t.Errorf("kept %v, want %v", got, want)
	}
}

func TestSameStepTwice(t *testing.T) {
	dir := t.TempDir()
	mustSave(t, dir, 3, 0)
	err := Save(t.Context(), dir, 3, contents(3), 0)
	if !errors.Is(err, fs.ErrExist) {
		t.Errorf("a step that is there: %v", err)
	}
	checkGood(t, dir, 3)
	// A damaged one makes way, but is not lost.
	if err := os.Truncate(filepath.Join(Path(dir, 3), ModelFile), 10); err != nil {
		t.Fatal(err)
	}
	mustSave(t, dir, 3, 0)
	checkGood(t, dir, 3)
	if got := names(t, dir); len(got) != 2 || !strings.HasPrefix(got[1], "step-00000003.damaged-") {
		t.Errorf("the directory has %v", got)
	}
	// So does a file in its place.
	if err := os.WriteFile(Path(dir, 4), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	mustSave(t, dir, 4, 0)
	checkGood(t, dir, 4)
}

// TestDamage changes a good checkpoint in every way that a disk or a person
// might, and expects it to be named and passed over.
func TestDamage(t *testing.T) {
	flip := func(name string, at int64) func(string) error {
		return func(path string) error {
			f, err := os.OpenFile(filepath.Join(path, name), os.O_RDWR, 0)
			if err != nil {
				return err
			}
			defer f.Close()
			var b [1]byte
			if _, err := f.ReadAt(b[:], at); err != nil {
				return err
			}
			b[0] ^= 1
			_, err = f.WriteAt(b[:], at)
			return err
		}
	}
	rewrite := func(old, new string) func(string) error {
		return func(path string) error {
			path = filepath.Join(path, ManifestName)
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			changed := strings.Replace(string(b), old, new, 1)
			if changed == string(b) {
				return fmt.Errorf("no %q in %s", old, b)
			}
			return os.WriteFile(path, []byte(changed), 0o644)
		}
	}
	for _, c := range []struct {
		what, file, want string
		damage           func(path string) error
	}{
		{"a flipped bit", ModelFile, "its bytes were changed", flip(ModelFile, 300_000)},
		{"a cut file", ModelFile, "its manifest says", func(p string) error { return os.Truncate(filepath.Join(p, ModelFile), 300_000) }},
		{"a missing file", "empty", "cannot be read", func(p string) error { return os.Remove(filepath.Join(p, "empty")) }},
		{"a directory for a file", "empty", "not a regular file", func(p string) error {
			return errors.Join(os.Remove(filepath.Join(p, "empty")), os.Mkdir(filepath.Join(p, "empty"), 0o755))
		}},
		{"no manifest", ManifestName, "cannot be read", func(p string) error { return os.Remove(filepath.Join(p, ManifestName)) }},
		{"an empty manifest", ManifestName, "is not JSON", func(p string) error { return os.Truncate(filepath.Join(p, ManifestName), 0) }},
		{"half a manifest", ManifestName, "is not JSON", func(p string) error { return os.Truncate(filepath.Join(p, ManifestName), 100) }},
		{"a huge manifest", ManifestName, "more than", func(p string) error { return os.Truncate(filepath.Join(p, ManifestName), maxManifestBytes+1) }},
		{"another step's manifest", ManifestName, "is that of step 22", rewrite(`"step": 2`, `"step": 22`)},
		{"a path out of the directory", ManifestName, "no plain file name", rewrite(`"empty"`, `"../empty"`)},
		{"a file twice", ManifestName, "twice", rewrite(`"empty"`, `"model.safetensors"`)},
		{"a negative size", ManifestName, "size -1", rewrite(`"bytes": 0`, `"bytes": -1`)},
		{"a short checksum", ManifestName, "8 hexadecimal digits", rewrite(`"00000000"`, `"0000"`)},
		{"another checksum", "empty", "its bytes were changed", rewrite(`"00000000"`, `"00000001"`)},
		{"an unknown field", ManifestName, "unknown field", rewrite(`"files"`, `"fils"`)},
		{"another program's manifest", ManifestName, "has format", rewrite(`"cohort-checkpoint"`, `"other"`)},
		{"a later version", ManifestName, "or a newer one", rewrite(`"version": 1`, `"version": 2`)},
		{"an empty directory", ManifestName, "cannot be read", func(p string) error { return errors.Join(os.RemoveAll(p), os.Mkdir(p, 0o755)) }},
		{"a file of its name", "", "not a directory", func(p string) error { return errors.Join(os.RemoveAll(p), os.WriteFile(p, nil, 0o644)) }},
	} {
		dir := t.TempDir()
		mustSave(t, dir, 1, 0)
		mustSave(t, dir, 2, 0)
		if err := c.damage(Path(dir, 2)); err != nil {
			t.Errorf("%s: %v", c.what, err)
			continue
		}
		good, damaged, err := Latest(t.Context(), dir)
		if err != nil || good.Step != 1 || len(damaged) != 1 {
			t.Errorf("%s: latest %v, damaged %v, %v", c.what, good, damaged, err)
			continue
		}
		if d := damaged[0]; d.Path != Path(dir, 2) || d.File != c.file || !strings.Contains(d.Error(), c.want) {
			t.Errorf("%s: got %q (file %q), want %q in %q", c.what, d, d.File, c.want, c.file)
		}
		// With no good one left, the error is the damage, not "there is none".
		if err := os.RemoveAll(Path(dir, 1)); err != nil {
			t.Fatal(err)
		}
		_, _, err = Latest(t.Context(), dir)
		var d *DamagedError
		if errors.Is(err, ErrNone) || !errors.As(err, &d) {
			t.Errorf("%s, alone: %v", c.what, err)
		}
	}
}

func TestNotDamageButForbidden(t *testing.T) {
	if os.Getuid() == 0 {
		t.Skip("root may read everything")
	}
	dir := t.TempDir()
	mustSave(t, dir, 1, 0)
	mustSave(t, dir, 2, 0)
	if err := os.Chmod(filepath.Join(Path(dir, 2), ModelFile), 0); err != nil {
		t.Fatal(err)
	}
	if c, _, err := Latest(t.Context(), dir); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("latest is %v, %v: want an error, not an older checkpoint", c, err)
	}
}

func TestWriterMisuse(t *testing.T) {
	mistake := errors.New("mistake")
	for _, c := range []struct {
		what, want string
		write      func(*Writer) error
	}{
		{"its own error", "mistake", func(w *Writer) error { return mistake }},
		{"a path", "no plain file name", func(w *Writer) error { _, err := w.Create("../x"); return err }},
		{"a hidden file", "no plain file name", func(w *Writer) error { return w.WriteFile(".x", nil) }},
		{"no name", "no name", func(w *Writer) error { return w.WriteFile("", nil) }},
		{"the manifest", "belongs to the manifest", func(w *Writer) error { return w.WriteFile(ManifestName, nil) }},
		{"twice the same name", "exists", func(w *Writer) error { return errors.Join(w.WriteFile("a", nil), w.WriteFile("a", nil)) }},
		{"an error overlooked", "exists", func(w *Writer) error { w.WriteFile("a", nil); w.WriteFile("a", nil); return nil }},
		{"not closed", "not closed", func(w *Writer) error { _, err := w.Create("a"); return err }},
		{"written after its end", "after its end", func(w *Writer) error {
			f, err := w.Create("a")
			if err != nil {
				return err
			}
			f.Close()
			_, err = f.Write([]byte("x"))
			return err
		}},
		{"not JSON", "unsupported", func(w *Writer) error { return w.WriteJSON("a", func() {}) }},
		{"bad tensors", "negative", func(w *Writer) error {
			return w.WriteSafetensors("a", []safetensors.Tensor{{Info: safetensors.Info{Name: "w", Shape: []int{-1}}}}, nil)
		}},
	} {
		dir := t.TempDir()
		mustSave(t, dir, 1, 0)
		err := Save(t.Context(), dir, 2, c.write, 1)
		var save *SaveError
		if !errors.As(err, &save) || !strings.Contains(err.Error(), c.want) || save.Committed || save.Step != 2 {
			t.Errorf("%s: got %v, want %q", c.what, err, c.want)
		}
		if got := names(t, dir); !reflect.DeepEqual(got, []string{"step-00000001"}) {
			t.Errorf("%s: the directory has %v", c.what, got)
		}
	}
}

func TestPanicLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	before := numFDs(t)
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic did not come through")
			}
		}()
		Save(t.Context(), dir, 1, func(w *Writer) error {
			w.Create("a")
			panic("inside write")
		}, 0)
	}()
	if got := names(t, dir); len(got) != 0 {
		t.Errorf("the directory has %v", got)
	}
	if after := numFDs(t); after != before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
	mustSave(t, dir, 1, 0) // the lock is free again
}

func TestBadDirectory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{file, filepath.Join(file, "below"), ""} {
		if err := Save(t.Context(), dir, 1, contents(1), 0); err == nil {
			t.Errorf("saved into %q", dir)
		}
	}
	if err := Save(t.Context(), t.TempDir(), -1, contents(1), 0); err == nil {
		t.Error("saved a negative step")
	}
	if _, _, err := Latest(t.Context(), file); err == nil || errors.Is(err, ErrNone) {
		t.Errorf("a file for a directory: %v", err)
	}
}

func TestCancel(t *testing.T) {
	dir := t.TempDir()
	mustSave(t, dir, 1, 0)
	ctx, cancel := context.WithCancel(t.Context())
	err := Save(ctx, dir, 2, func(w *Writer) error {
		f, err := w.Create("a")
		if err != nil {
			return err
		}
		cancel()
		_, err = f.Write(make([]byte, 1<<20))
		return err
	}, 0)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if _, _, err := Latest(ctx, dir); !errors.Is(err, context.Canceled) {
		t.Errorf("latest: %v", err)
	}
	if got := names(t, dir); len(got) != 1 {
		t.Errorf("the directory has %v", got)
	}
}

// TestOneSaveAtATime: a second save gets a BusyError and disturbs nothing, in
// particular not the first one's temporary directory.
func TestOneSaveAtATime(t *testing.T) {
	dir := t.TempDir()
	err := Save(t.Context(), dir, 1, func(w *Writer) error {
		var busy *BusyError
		if err := Save(t.Context(), dir, 2, contents(2), 0); !errors.As(err, &busy) || busy.Dir != dir {
			t.Errorf("the second save: %v", err)
		}
		return contents(1)(w)
	}, 0)
	if err != nil {
		t.Fatal(err)
	}
	checkGood(t, dir, 1)
}

// TestLatestDuringSaves: a reader beside a saver that prunes never sees a
// damaged checkpoint, and never an older one than before.
func TestLatestDuringSaves(t *testing.T) {
	dir := t.TempDir()
	mustSave(t, dir, 0, 1)
	done := make(chan error, 1)
	go func() {
		for step := 1; step <= 40; step++ {
			if err := (&save{dir: dir, step: step, keep: 1, noSync: true}).run(context.Background(), contents(step)); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	last := 0
	for {
		c, damaged, err := Latest(t.Context(), dir)
		if err != nil || len(damaged) != 0 || c.Step < last {
			t.Fatalf("after step %d: %v, damaged %v, %v", last, c, damaged, err)
		}
		last = c.Step
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
			checkGood(t, dir, 40)
			return
		default:
		}
	}
}

func TestMatchStateDict(t *testing.T) {
	info := func(name string, d safetensors.DType, shape ...int) safetensors.Info {
		return safetensors.Info{Name: name, DType: d, Shape: shape}
	}
	have := []safetensors.Info{info("a", safetensors.F32, 2, 3), info("old", safetensors.F32), info("c", safetensors.F32, 4), info("d", safetensors.F32, 1), info("ancient", safetensors.F32)}
	want := []safetensors.Info{info("new", safetensors.F32), info("d", safetensors.I64, 1), info("a", safetensors.F32, 2, 3), info("c", safetensors.F32, 5), info("brandnew", safetensors.F32)}
	err := MatchStateDict("f", have, want)
	var e *StateDictError
	if !errors.As(err, &e) {
		t.Fatalf("got %v", err)
	}
	if !slices.Equal(e.Missing, []string{"brandnew", "new"}) || !slices.Equal(e.Extra, []string{"ancient", "old"}) || len(e.Misshapen) != 2 || e.Misshapen[0].Name != "c" {
		t.Errorf("got %+v", e)
	}
	for _, part := range []string{"2 missing, 2 extra, 2 misshapen", "missing    brandnew", "extra      old", "c: the file has [4] F32, the model [5] F32", "d: the file has [1] F32, the model [1] I64"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("no %q in %v", part, err)
		}
	}
	if err := MatchStateDict("f", have, have); err != nil {
		t.Errorf("with itself: %v", err)
	}
	slices.Reverse(have)
	reversed := Fingerprint(have)
	slices.Reverse(have)
	if Fingerprint(have) != reversed || Fingerprint(have) == Fingerprint(want) || len(reversed) != 64 {
		t.Error("the fingerprint depends on the order, or not on the shapes")
	}
}

func FuzzManifest(f *testing.F) {
	f.Add(encodeManifest(3, []FileInfo{{"a", 5, 77}, {"b.json", 0, 0}}))
	f.Add([]byte(`{"format":"cohort-checkpoint","version":1,"step":1,"files":null}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		step, files, err := parseManifest(text)
		if err != nil {
			return
		}
		step2, files2, err := parseManifest(encodeManifest(step, files))
		if err != nil || step2 != step || !slices.Equal(files, files2) {
			t.Fatalf("step %d files %v came back as %d %v (%v)", step, files, step2, files2, err)
		}
		for _, f := range files {
			if filepath.Base(f.Name) != f.Name {
				t.Fatalf("the name %q leads elsewhere", f.Name)
			}
		}
	})
}

func FuzzProgress(f *testing.F) {
	f.Add([]byte(`{"version":1,"step":3,"epoch":0,"seed":1,"model_fingerprint":"","loader":{"a":1},"generators":{"x":[1]}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		if p, err := parseProgress(text); err == nil && (p.Step < 0 || p.Epoch < 0) {
			t.Fatalf("accepted %+v", p)
		}
	})
}

func TestClaim(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	release, err := Claim(dir)
	if err != nil {
		t.Fatal(err)
	}
	var busy *BusyError
	if _, err := Claim(dir); !errors.As(err, &busy) || !busy.Run {
		t.Errorf("a second run in a claimed directory got %v, want a *BusyError about a run", err)
	}
	if err := Save(t.Context(), dir, 1, func(w *Writer) error { return w.WriteFile("a", []byte("b")) }, 0); err != nil {
		t.Errorf("a run cannot save in its own directory: %v", err)
	}
	release()
	again, err := Claim(dir)
	if err != nil {
		t.Fatalf("after the release: %v", err)
	}
	again()
}
