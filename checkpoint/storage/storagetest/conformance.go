// SPDX-License-Identifier: Apache-2.0

// Package storagetest tests implementations of [storage.Storage], and breaks disks.
//
// [Run] is what every storage must pass. The test of a storage calls it with a
// function that opens a new, empty place, and a second and third view of it: the
// ranks of a job have a Storage each.
//
// [Machine] is for tests of what is built on directories. It fails an operation
// of the disk, or stops the world before one, and loses what was not durable then:
// bytes of files that were not synced, and names in folders that were not synced.
// A saver is right if the newest checkpoint is the old or the new one whatever was lost.
//
// Caveats. The losses of a Machine are those of its seed, if operations come in the
// same order. It knows only what passes through its own directories; a rename must
// stay in its folder. Two processes cannot share one.
package storagetest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint/storage"
)

// Place is a new and empty place; each call returns a view of it as another
// process has it.
type Place func() storage.Storage

// Run tests a storage. open makes a new place for each part of the test.
func Run(t *testing.T, open func(t *testing.T) Place) {
	t.Helper()
	for _, part := range []struct {
		name string
		test func(t *testing.T, place Place)
	}{
		{"Names", testNames},
		{"Files", testFiles},
		{"Replace", testReplace},
		{"List", testList},
		{"Link", testLink},
		{"Commit", testCommit},
		{"Remove", testRemove},
		{"SetAside", testSetAside},
		{"Race", testRace},
		{"Canceled", testCanceled},
	} {
		t.Run(part.name, func(t *testing.T) { part.test(t, open(t)) })
	}
}

const seed = 19

// content returns bytes that belong to a name.
func content(name string, n int) []byte {
	r := rand.New(rand.NewPCG(seed, uint64(len(name))))
	for _, c := range name {
		r = rand.New(rand.NewPCG(r.Uint64(), uint64(c)))
	}
	b := make([]byte, (n+7)/8*8)
	for i := 0; i < n; i += 8 {
		binary.LittleEndian.PutUint64(b[i:], r.Uint64())
	}
	return b[:n]
}

func mustWrite(t *testing.T, s storage.Storage, name string, data []byte) {
	t.Helper()
	if err := storage.WriteFile(t.Context(), s, name, data); err != nil {
		t.Fatalf("writing %s: %v", name, err)
	}
}

func checkFile(t *testing.T, s storage.Storage, name string, want []byte) {
	t.Helper()
	got, err := storage.ReadFile(t.Context(), s, name, int64(len(want))+100)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s has %d bytes, equal to those written: %v; %v", name, len(got), bytes.Equal(got, want), err)
	}
}

// names returns what a folder has; names of folders end with a slash.
func names(t *testing.T, s storage.Storage, folder string) []string {
	t.Helper()
	entries, err := s.List(t.Context(), folder)
	if err != nil {
		t.Fatalf("listing %q: %v", folder, err)
	}
	var out []string
	for _, e := range entries {
		name := e.Name
		if e.IsFolder {
			name += "/"
		}
		out = append(out, name)
	}
	return out
}

func testNames(t *testing.T, place Place) {
	ctx, s := t.Context(), place()
	if s.String() == "" || s.String() != place().String() {
		t.Errorf("the names of two views are %q and %q", s, place())
	}
	for _, name := range []string{"", ".", "..", "../a", "a/../b", "/a", "a/", "a//b", `a\b`, "a:b", "a\x00b", "a\nb"} {
		if _, err := s.Open(ctx, name); err == nil {
			t.Errorf("Open takes %q", name)
		}
		if f, err := s.Create(ctx, name); err == nil {
			f.Abort()
			t.Errorf("Create takes %q", name)
		}
		if s.Remove(ctx, name) == nil || s.SetAside(ctx, name) == nil || s.Link(ctx, name, "x") == nil || s.Link(ctx, "x", name) == nil {
			t.Errorf("Remove, SetAside or Link takes %q", name)
		}
		if s.Commit(ctx, name, "x", nil) == nil || s.Commit(ctx, "x", name, nil) == nil {
			t.Errorf("Commit takes %q", name)
		}
		if _, err := s.List(ctx, name); err == nil && name != "" {
			t.Errorf("List takes %q", name)
		}
	}
	if got := names(t, s, ""); len(got) != 0 {
		t.Errorf("a new place has %q", got)
	}
	if got := names(t, s, "no/such"); len(got) != 0 {
		t.Errorf("a folder that is not there has %q", got)
	}
	mustWrite(t, s, "a folder/ünïcode+100%&x=y #1?.json", []byte("1"))
	checkFile(t, s, "a folder/ünïcode+100%&x=y #1?.json", []byte("1"))
	if got := names(t, s, "a folder"); !slices.Equal(got, []string{"ünïcode+100%&x=y #1?.json"}) {
		t.Errorf("the folder has %q", got)
	}
}

func testFiles(t *testing.T, place Place) {
	ctx, s := t.Context(), place()
	for _, size := range []int{0, 1, 4095, 1 << 20, 6<<20 + 3, 11<<20 + 1} {
		name := fmt.Sprintf("f/%d/data", size)
		want := content(name, size)
		f, err := s.Create(ctx, name)
		if err != nil {
			t.Fatal(err)
		}
		// Pieces of all sizes: 1 byte, then more each time.
		for at, n := 0, 1; at < size; n = n*3 + 1 {
			piece := want[at:min(at+n, size)]
			got, err := f.Write(piece)
			if err != nil || got != len(piece) {
				t.Fatalf("writing %d bytes: %d, %v", len(piece), got, err)
			}
			at += got
		}
		if _, err := place().Open(ctx, name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is there before it is closed: %v", name, err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		f.Abort() // does nothing
		if _, err := f.Write([]byte("x")); err == nil {
			t.Error("a closed file takes bytes")
		}
		checkRead(t, place(), name, want)
	}
	if _, err := s.Open(ctx, "f"); err == nil {
		t.Error("a folder opens as a file")
	}
	if _, err := s.Open(ctx, "f/none"); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "f/none") {
		t.Errorf("opening what is not there: %v", err)
	}
	f, err := s.Create(ctx, "aborted/file")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(content("x", 12<<20)); err != nil {
		t.Fatal(err)
	}
	f.Abort()
	f.Abort()
	if got := names(t, s, "aborted"); len(got) != 0 {
		t.Errorf("a file that was given up left %q", got)
	}
	if err := f.Close(); err == nil {
		t.Error("a file that was given up can be closed")
	}
}

// checkRead reads a file whole, in parts at once, and past its end.
func checkRead(t *testing.T, s storage.Storage, name string, want []byte) {
	t.Helper()
	checkFile(t, s, name, want)
	o, err := s.Open(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	if o.Size() != int64(len(want)) {
		t.Fatalf("%s has the size %d, not %d", name, o.Size(), len(want))
	}
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(i)))
			for range 4 {
				at := r.IntN(len(want) + 1)
				b := make([]byte, r.IntN(len(want)-at+1))
				if n, err := o.ReadAt(b, int64(at)); n != len(b) || err != nil && !(errors.Is(err, io.EOF) && at+n == len(want)) || !bytes.Equal(b, want[at:at+n]) {
					t.Errorf("%s: reading %d bytes at %d: %d, %v", name, len(b), at, n, err)
				}
			}
		})
	}
	wg.Wait()
	b := make([]byte, 10)
	if n, err := o.ReadAt(b, int64(len(want))); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("%s: reading at the end: %d, %v", name, n, err)
	}
	if n, err := o.ReadAt(b, int64(max(len(want)-3, 0))); n != min(3, len(want)) || !errors.Is(err, io.EOF) {
		t.Errorf("%s: reading across the end: %d, %v", name, n, err)
	}
	if _, err := o.ReadAt(b, -1); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("%s: reading at byte -1: %v", name, err)
	}
}

func testReplace(t *testing.T, place Place) {
	s := place()
	for _, size := range []int{100, 7 << 20, 3, 0} {
		want := content(fmt.Sprint(size), size)
		mustWrite(t, s, "file", want)
		checkFile(t, place(), "file", want)
	}
	if got := names(t, s, ""); !slices.Equal(got, []string{"file"}) {
		t.Errorf("the storage has %q", got)
	}
}

func testList(t *testing.T, place Place) {
	ctx, s := t.Context(), place()
	for _, name := range []string{"b", "a/one", "a/two", "a/deep/er/three", "a-b/x", "ab"} {
		mustWrite(t, s, name, []byte(name))
	}
	for folder, want := range map[string][]string{
		"": {"a/", "a-b/", "ab", "b"}, "a": {"deep/", "one", "two"}, "a/deep": {"er/"}, "a-b": {"x"}, "c": nil,
	} {
		if got := names(t, place(), folder); !slices.Equal(got, want) {
			t.Errorf("%q has %q, not %q", folder, got, want)
		}
	}
	entries, err := s.List(ctx, "a")
	if err != nil || len(entries) != 3 || entries[1].Size != int64(len("a/one")) || entries[1].Modified.IsZero() || entries[1].IsLink {
		t.Errorf("the entries are %+v, %v", entries, err)
	}
}

func testLink(t *testing.T, place Place) {
	ctx, s := t.Context(), place()
	want := content("linked", 6<<20)
	mustWrite(t, s, "step-1/frozen", want)
	if err := s.Link(ctx, "step-1/frozen", "step-2/new/frozen"); err != nil {
		t.Fatal(err)
	}
	if err := s.Link(ctx, "step-1/none", "step-2/none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a link to what is not there: %v", err)
	}
	if err := s.Remove(ctx, "step-1"); err != nil {
		t.Fatal(err)
	}
	checkFile(t, place(), "step-2/new/frozen", want)
	if err := s.Link(ctx, "step-2/new/frozen", "step-3/frozen"); err != nil {
		t.Fatal(err)
	}
	mustWrite(t, s, "step-3/frozen", []byte("other"))
	checkFile(t, s, "step-2/new/frozen", want)
}

// stage writes a stage with two files, one of them by another view, and returns
// where the files lie in the checkpoint.
func stage(t *testing.T, place Place, name, id string) (stage, folder string) {
	t.Helper()
	s := place()
	stage, folder = s.Stage(name, id)
	mustWrite(t, s, stage+"/one", []byte("one of "+id))
	mustWrite(t, place(), stage+"/two", []byte("two of "+id))
	if folder != "" {
		folder += "/"
	}
	return stage, name + "/" + folder
}

func testCommit(t *testing.T, place Place) {
	ctx, s := t.Context(), place()
	dir, at := stage(t, place, "step-1", "abc")
	if _, err := s.Open(ctx, "step-1/"+storage.ManifestName); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("there is a manifest before the commit: %v", err)
	}
	if err := s.Commit(ctx, dir, "step-1", []byte("manifest of abc")); err != nil {
		t.Fatal(err)
	}
	check := func() {
		t.Helper()
		checkFile(t, place(), "step-1/"+storage.ManifestName, []byte("manifest of abc"))
		checkFile(t, place(), at+"one", []byte("one of abc"))
		checkFile(t, place(), at+"two", []byte("two of abc"))
	}
	check()
	dir2, _ := stage(t, place, "step-1", "def")
	if err := s.Commit(ctx, dir2, "step-1", []byte("manifest of def")); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a second commit of the step: %v", err)
	}
	check()
	dir3, at3 := stage(t, place, "step-1", "ghi")
	canceled, cancel := context.WithCancel(ctx)
	cancel()
	if err := s.Replace(canceled, dir3, "step-1", []byte("manifest of ghi")); !errors.Is(err, context.Canceled) {
		t.Errorf("Replace after the end of its context: %v", err)
	}
	check()
	if err := s.Replace(ctx, dir3, "step-1", []byte("manifest of ghi")); err != nil {
		t.Fatal(err)
	}
	checkFile(t, place(), "step-1/"+storage.ManifestName, []byte("manifest of ghi"))
	checkFile(t, place(), at3+"one", []byte("one of ghi"))
	dir4, at4 := stage(t, place, "step-2", "jkl")
	if err := s.Replace(ctx, dir4, "step-2", []byte("manifest of jkl")); err != nil { // nothing is there
		t.Fatal(err)
	}
	checkFile(t, place(), at4+"two", []byte("two of jkl"))
	if err := s.Remove(ctx, "step-2"); err != nil {
		t.Error(err)
	}
	check = func() {
		t.Helper()
		checkFile(t, place(), at3+"two", []byte("two of ghi"))
	}
	if err := s.Remove(ctx, dir2); err != nil {
		t.Error(err)
	}
	check()
	if got := names(t, s, ""); !slices.Equal(got, []string{"step-1/"}) {
		t.Errorf("the storage has %q", got)
	}
}

func testRemove(t *testing.T, place Place) {
	ctx, s := t.Context(), place()
	dir, _ := stage(t, place, "step-1", "abc")
	if err := s.Commit(ctx, dir, "step-1", []byte("{}")); err != nil {
		t.Fatal(err)
	}
	mustWrite(t, s, "step-10/file", []byte("10"))
	mustWrite(t, s, "file", []byte("f"))
	for _, name := range []string{"step-1", "step-1", "file", "none/at/all"} {
		if err := place().Remove(ctx, name); err != nil {
			t.Errorf("removing %s: %v", name, err)
		}
	}
	if got := names(t, s, ""); !slices.Equal(got, []string{"step-10/"}) {
		t.Errorf("the storage has %q", got)
	}
	dir, _ = stage(t, place, "step-1", "def")
	if err := s.Commit(ctx, dir, "step-1", []byte("again")); err != nil {
		t.Errorf("the name is not free: %v", err)
	}
	checkFile(t, s, "step-1/"+storage.ManifestName, []byte("again"))
}

func testSetAside(t *testing.T, place Place) {
	ctx, s := t.Context(), place()
	dir, _ := stage(t, place, "step-1", "abc")
	if err := s.Commit(ctx, dir, "step-1", []byte("damaged")); err != nil {
		t.Fatal(err)
	}
	if err := s.SetAside(ctx, "step-1"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Open(ctx, "step-1/"+storage.ManifestName); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the checkpoint is still there: %v", err)
	}
	dir, at := stage(t, place, "step-1", "def")
	if err := s.Commit(ctx, dir, "step-1", []byte("good")); err != nil {
		t.Fatalf("the name is not free: %v", err)
	}
	checkFile(t, place(), at+"one", []byte("one of def"))
	found := 0
	var walk func(folder string)
	walk = func(folder string) {
		for _, name := range names(t, s, folder) {
			path := strings.TrimPrefix(folder+"/"+name, "/")
			if sub, ok := strings.CutSuffix(path, "/"); ok {
				walk(sub)
			} else if b, err := storage.ReadFile(ctx, s, path, 100); err == nil && (string(b) == "damaged" || string(b) == "one of abc") {
				found++
			}
		}
	}
	walk("")
	if found != 2 {
		t.Errorf("%d of 2 files of the damaged checkpoint are still there: %q %q", found, names(t, s, ""), names(t, s, "step-1"))
	}
	if err := s.SetAside(ctx, "step-7"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("setting aside what is not there: %v", err)
	}
}

// testRace: of several that commit a step at the same time exactly one succeeds,
// and the checkpoint is that one's, whole.
func testRace(t *testing.T, place Place) {
	ctx := t.Context()
	const numSavers = 3
	for round := range 5 {
		name := fmt.Sprintf("step-%d", round)
		errs := make([]error, numSavers)
		stages, at := make([]string, numSavers), make([]string, numSavers)
		for i := range numSavers {
			stages[i], at[i] = stage(t, place, name, fmt.Sprintf("id%d", i))
		}
		var wg sync.WaitGroup
		begin := make(chan struct{})
		for i := range numSavers {
			s := place()
			wg.Go(func() {
				<-begin
				errs[i] = s.Commit(ctx, stages[i], name, fmt.Append(nil, "manifest of ", i))
			})
		}
		close(begin)
		wg.Wait()
		winner := slices.Index(errs, nil)
		if winner < 0 {
			t.Fatalf("nobody has committed %s: %v", name, errs)
		}
		for i, err := range errs {
			if i != winner && !errors.Is(err, fs.ErrExist) {
				t.Errorf("%s: committing id%d beside id%d: %v", name, i, winner, err)
			}
		}
		checkFile(t, place(), name+"/"+storage.ManifestName, fmt.Append(nil, "manifest of ", winner))
		checkFile(t, place(), at[winner]+"one", fmt.Appendf(nil, "one of id%d", winner))
	}
}

func testCanceled(t *testing.T, place Place) {
	s := place()
	mustWrite(t, s, "file", []byte("f"))
	dir, _ := stage(t, place, "step-1", "abc")
	ctx, cancel := context.WithCancel(t.Context())
	f, err := s.Create(ctx, "other")
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	_, err = f.Write(content("x", 12<<20))
	if err == nil {
		err = f.Close()
	}
	f.Abort()
	for what, err := range map[string]error{
		"a file":    err,
		"Remove":    s.Remove(ctx, "file"),
		"SetAside":  s.SetAside(ctx, "step-1"),
		"Link":      s.Link(ctx, "file", "second"),
		"Commit":    s.Commit(ctx, dir, "step-1", []byte("{}")),
		"WriteFile": storage.WriteFile(ctx, s, "third", nil),
	} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s after the end of its context: %v", what, err)
		}
	}
	if _, err := s.List(ctx, ""); !errors.Is(err, context.Canceled) {
		t.Errorf("List: %v", err)
	}
	if got := names(t, s, ""); slices.ContainsFunc(got, func(n string) bool { return n != "file" && !strings.HasPrefix(n, "step-1") }) {
		t.Errorf("the storage has %q", got)
	}
	if _, err := s.Open(t.Context(), "step-1/"+storage.ManifestName); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("there is a checkpoint: %v", err)
	}
}
