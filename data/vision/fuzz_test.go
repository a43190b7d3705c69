// SPDX-License-Identifier: Apache-2.0

package vision

import (
	"bytes"
	"context"
	"image"
	"image/color"
	"os"
	"path/filepath"
	"testing"

	"github.com/cohort-ml/cohort/data"
)

// FuzzIDX: whatever files of images and labels hold, they are refused, or every
// sample can be read and has a label of a class.
func FuzzIDX(f *testing.F) {
	images, labels := idx(congruence(3, 8, 1).Pix, 4, 2, 3), idx([]byte{0, 2, 1, 2}, 4)
	f.Add(images, labels)
	f.Add(images[:20], labels)
	f.Add(idx(nil, 1<<31, 1<<13, 1<<13), labels)
	f.Add([]byte("\x1f\x8b\x08\x00"), labels)
	f.Fuzz(func(t *testing.T, images, labels []byte) {
		dir := t.TempDir()
		a, b := filepath.Join(dir, "images"), filepath.Join(dir, "labels")
		for path, text := range map[string][]byte{a: images, b: labels} {
			if err := os.WriteFile(path, text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		set, err := OpenIDX(a, b)
		if err != nil {
			return
		}
		defer set.Close()
		readAll(t, set)
	})
}

// FuzzCIFAR does the same with a file of records.
func FuzzCIFAR(f *testing.F) {
	f.Add(cifarRecord([]byte{3, 99}, 0))
	f.Add(cifarRecord([]byte{3, 100}, 0))
	f.Add([]byte{1, 2, 3})
	f.Fuzz(func(t *testing.T, file []byte) {
		dir := t.TempDir()
		for _, name := range []string{"train.bin", "test.bin"} {
			if err := os.WriteFile(filepath.Join(dir, name), file, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		train, test, err := OpenCIFAR100(dir)
		if err != nil {
			return
		}
		defer train.Close()
		defer test.Close()
		readAll(t, train)
	})
}

func readAll(t *testing.T, set *Set) {
	if set.Len() < 1 {
		t.Fatal("a set of nothing")
	}
	for i := range set.Len() {
		s, err := set.Get(t.Context(), data.Key{Index: i})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Image.check(); err != nil || s.Label < 0 || s.Label >= len(set.Classes()) {
			t.Fatalf("sample %d: label %d of %d classes, %v", i, s.Label, len(set.Classes()), err)
		}
	}
}

// FuzzDecode: a file is an error or an image, of which any view is the same
// whether the rest was decoded or not.
func FuzzDecode(f *testing.F) {
	m := image.NewNRGBA(image.Rect(0, 0, 21, 17))
	for i := range 21 * 17 {
		m.SetNRGBA(i%21, i/21, color.NRGBA{byte(i), byte(3 * i), byte(7 * i), 200})
	}
	for _, asPNG := range []bool{false, true} {
		b := encoded(f, m, asPNG)
		f.Add(b, uint64(1))
		f.Add(b[:len(b)/2], uint64(2))
	}
	f.Fuzz(func(t *testing.T, b []byte, seed uint64) {
		if w, h, ok := claimed(b); ok && w*h > 1<<18 {
			return // slow, not wrong
		}
		img, err := Decode(b)
		if err != nil {
			return
		}
		if err := img.check(); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), "image")
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		set := &Set{classes: []string{"a"}, labels: []uint16{0}}
		set.open = func(ctx context.Context, _ int, file *file) error { return file.open(ctx, path) }
		key := data.Key{Epoch: int(seed >> 32), Index: 0}
		zoom := RandomResizedCrop{Width: 9, Height: 7}
		got, err := Apply(set, int64(seed), zoom, RandomFlip{}).Get(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		want, err := Apply(data.FromSlice([]Sample{{Image: img}}), int64(seed), zoom, RandomFlip{}).Get(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got.Image.Pix, want.Image.Pix) {
			t.Fatal("a view of the file is not that of the decoded image")
		}
	})
}

// claimed returns the size in a file's header.
func claimed(b []byte) (width, height int, ok bool) {
	c, _, err := image.DecodeConfig(bytes.NewReader(b))
	return c.Width, c.Height, err == nil
}
