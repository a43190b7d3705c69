// SPDX-License-Identifier: Apache-2.0

package vision

import (
	"bytes"
	"errors"
	"image"
	"image/color"
	"image/jpeg"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/data"
)

func encoded(t testing.TB, m image.Image, asPNG bool) []byte {
	t.Helper()
	var b bytes.Buffer
	var err error
	if asPNG {
		err = png.Encode(&b, m)
	} else {
		err = jpeg.Encode(&b, m, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestFolder(t *testing.T) {
	grey := image.NewGray(image.Rect(0, 0, 3, 2))
	grey.Pix[1] = 77
	half := image.NewNRGBA(image.Rect(0, 0, 2, 1))
	half.SetNRGBA(1, 0, color.NRGBA{R: 200, G: 100, B: 50, A: 7})
	files := map[string][]byte{
		"train/cat/b.png": encoded(t, grey, true), "train/cat/a.JPG": encoded(t, grey, false), "train/cat/deep/c.png": encoded(t, half, true),
		"train/cat/notes.txt": []byte("no image"), "train/cat/.hidden.png": nil, "train/dog/x.jpeg": []byte("\xff\xd8 torn"), "train/.git/x.png": nil,
		"val/dog/1.png": encoded(t, half, true),
	}
	train, test, err := Open(write(t, files))
	if err != nil {
		t.Fatal(err)
	}
	if d := diff([]string{"cat", "dog"}, train.Classes()); d != "" || train.Len() != 4 || test.Len() != 1 || test.Label(0) != 1 {
		t.Errorf("%d and %d images, %s", train.Len(), test.Len(), d)
	}
	s, err := train.Get(t.Context(), data.Key{Index: 1}) // b.png
	if err != nil || s.Label != 0 || s.Image.Channels != 3 || s.Image.Width != 3 || s.Image.row(0)[4] != 77 {
		t.Errorf("%+v, %v", s, err)
	}
	if s, err = train.Get(t.Context(), data.Key{Index: 2}); err != nil || !bytes.Equal(s.Image.Pix[3:], []byte{200, 100, 50}) {
		t.Errorf("%+v, %v", s, err)
	}
	// The torn image is an error of its own that names it.
	_, err = train.Get(t.Context(), data.Key{Index: 3})
	var e *Error
	if !errors.As(err, &e) || !strings.HasSuffix(e.Path, "train/dog/x.jpeg") {
		t.Errorf("%v", err)
	}
}

func TestFolderSplit(t *testing.T) {
	files := map[string][]byte{}
	for _, class := range []string{"a", "b"} {
		for i := range 25 {
			files[class+"/"+string(rune('a'+i))+".png"] = nil
		}
	}
	train, test, err := Open(write(t, files))
	if err != nil || train.Len() != 46 || test.Len() != 4 {
		t.Fatalf("%v, %v, %v", train, test, err)
	}
}

// TestFolderFingerprint: a file of another size is another set, one that was
// touched is not.
func TestFolderFingerprint(t *testing.T) {
	dir := write(t, map[string][]byte{"train/a/1.png": []byte("x"), "train/b/1.png": []byte("y"), "test/a/1.png": []byte("z")})
	fingerprint := func() string {
		t.Helper()
		train, _, err := Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		return train.Fingerprint()
	}
	before := fingerprint()
	path := filepath.Join(dir, "train/b/1.png")
	if err := os.Chtimes(path, time.Unix(1, 0), time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if after := fingerprint(); after != before {
		t.Errorf("a file that was touched: %s, before %s", after, before)
	}
	if err := os.WriteFile(path, []byte("yy"), 0o644); err != nil {
		t.Fatal(err)
	}
	if after := fingerprint(); after == before {
		t.Errorf("a file of another size: %s, as before", after)
	}
}

func TestBadFolder(t *testing.T) {
	some := []byte("x")
	for name, c := range map[string]struct {
		files map[string][]byte
		want  string
	}{
		"nothing":       {map[string][]byte{"readme.txt": some}, "no data set in it"},
		"empty class":   {map[string][]byte{"train/a/1.png": some, "train/b/x.txt": some, "test/a/1.png": some}, "the class is empty"},
		"no test":       {map[string][]byte{"train/a/1.png": some}, "none to test on"},
		"empty test":    {map[string][]byte{"train/a/1.png": some, "test/a/x": some}, "no images in it"},
		"foreign class": {map[string][]byte{"train/a/1.png": some, "test/b/1.png": some}, "does not have"},
		"too few":       {map[string][]byte{"a/1.png": some, "b/1.png": some}, "nothing to test on"},
	} {
		if _, _, err := Open(write(t, c.files)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	if _, _, err := Open(t.TempDir() + "/none"); err == nil || !strings.Contains(err.Error(), "none") {
		t.Error(err)
	}
}

// TestRareJPEG: light and inks without luma keep their colours, also in part.
func TestRareJPEG(t *testing.T) {
	for _, name := range []string{"rgb.jpg", "cmyk.jpg"} {
		b, err := os.ReadFile("testdata/" + name)
		if err != nil {
			t.Fatal(err)
		}
		img, err := Decode(b)
		if err != nil || img.Width != 30 || img.Height != 20 || img.Channels != 3 {
			t.Fatalf("%s: %d·%d, %v", name, img.Width, img.Height, err)
		}
		set, err := OpenFolder(write(t, map[string][]byte{"a/" + name: b}))
		if err != nil {
			t.Fatal(err)
		}
		part, err := Apply(set, 1, ResizeTo{10, 10}).Get(t.Context(), data.Key{})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			img  Image
			x, y int
			want [3]int
		}{{img, 5, 5, [3]int{200, 40, 90}}, {img, 25, 12, [3]int{10, 220, 60}}, {part.Image, 1, 8, [3]int{200, 40, 90}}} {
			for i, v := range c.img.row(c.y)[3*c.x : 3*c.x+3] {
				if d := int(v) - c.want[i]; d < -6 || d > 6 {
					t.Errorf("%s: channel %d at %d, %d is %d, want about %d", name, i, c.x, c.y, v, c.want[i])
				}
			}
		}
	}
}

// TestDecodeLimits: a header that promises too much is refused before any
// memory is taken.
func TestDecodeLimits(t *testing.T) {
	b := encoded(t, image.NewGray(image.Rect(0, 0, 8, 8)), false)
	i := bytes.Index(b, []byte("\xff\xc0"))
	copy(b[i+5:], "\xff\xff\xff\xff")
	if _, err := Decode(b); err == nil || !strings.Contains(err.Error(), "65535") {
		t.Error(err)
	}
	for _, b := range [][]byte{nil, []byte("GIF89a"), {0xff}} {
		if _, err := Decode(b); err == nil {
			t.Errorf("%q: no error", b)
		}
	}
}
