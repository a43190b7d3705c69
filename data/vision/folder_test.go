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

// TestFolderNames: train and test are found in any letter case and by their
// other names, and what is not read is told.
func TestFolderNames(t *testing.T) {
	for _, c := range []struct {
		files       string // paths
		classes     string
		train, test int
		notes       string // "" for none
	}{
		{"Train/a/1.png Train/b/1.png Test/b/1.png", "a b", 2, 1, ""},
		{"TRAIN/a/1.png VAL/a/1.png", "a", 1, 1, ""},
		{"training/a/1.png validation/a/1.png testing/a/1.png testing/a/2.png", "a", 1, 2, `other directories are not: ["validation"]`},
		{"training_set/a/1.png test_set/a/1.png", "a", 1, 1, ""},
		{"train/a/1.png train_extra/a/1.png test/a/1.png", "a", 1, 1, `["train_extra"]`},
		{"seg_train/a/1.png seg_test/a/1.png", "a", 1, 1, ""},
		{"TrainSet/a/1.png ValidationSet/a/1.png", "a", 1, 1, ""},
		{"train/a/1.png Valid/a/1.png models/x/1.png", "a", 1, 1, `["models"]`},
		{"train/a/1.png test/a/1.png __MACOSX/train/a/1.png .ipynb_checkpoints/1.png Thumbs.db train/a/Thumbs.db train/a/.DS_Store train/__MACOSX/1.png", "a", 1, 1, ""},
		{"train/a/1.png train/a/2.webp train/b/1.png train/b/2.GIF train/b/3.gif test/a/1.bmp test/a/1.png", "a b", 2, 1, "left out, neither JPEG nor PNG: 3 files (2 .gif, 1 .webp)"},
		{"train/a/1.png test/a/1.bmp test/a/1.png", "a", 1, 1, "left out, neither JPEG nor PNG: 1 file (1 .bmp)"},
		{"train/a/1.png test/a/1.png labels.csv train/2.png", "a", 1, 1, "left out beside the directories: 1 file (1 .png)"},
		{"bullet-train/0.png bullet-train/1.png bullet-train/2.png bullet-train/3.png bullet-train/4.png bullet-train/5.png bullet-train/6.png bullet-train/7.png bullet-train/8.png bullet-train/9.png car/1.png", "bullet-train car", 10, 1, ""},
		{"a/0.png a/1.png a/2.png a/3.png a/4.png a/5.png a/6.png a/7.png a/8.png a/9.png test/1.png", "a test", 10, 1, "the directory test is taken for a class"},
	} {
		files := map[string][]byte{}
		for path := range strings.FieldsSeq(c.files) {
			files[path] = nil
		}
		train, test, err := Open(write(t, files))
		if err != nil {
			t.Errorf("%s: %v", c.files, err)
			continue
		}
		if got := strings.Join(train.Classes(), " "); got != c.classes || train.Len() != c.train || test.Len() != c.test {
			t.Errorf("%s: classes %s, %d and %d images, want %s, %d and %d", c.files, got, train.Len(), test.Len(), c.classes, c.train, c.test)
		}
		if notes := strings.Join(train.Notes(), "\n"); c.notes == "" && notes != "" || !strings.Contains(notes, c.notes) {
			t.Errorf("%s: notes %q, want %q", c.files, notes, c.notes)
		}
		if len(test.Notes()) > 0 {
			t.Errorf("%s: told twice: %q", c.files, test.Notes())
		}
	}
}

// TestFolderContent: what files of other names hold counts, and a file that
// holds something else is named as what it is.
func TestFolderContent(t *testing.T) {
	m := image.NewGray(image.Rect(0, 0, 3, 2))
	jpg, png := encoded(t, m, false), encoded(t, m, true)
	set, err := OpenFolder(write(t, map[string][]byte{
		"a/1.jfif": jpg, "a/2": png, "a/3.webp": jpg, "a/4.PNG": jpg, "a/5.JPG": png, "a/6.txt": []byte("x"), "a/7.gif": []byte("GIF89a"),
		"a/8.jpg": []byte("RIFF\x00\x00\x00\x00WEBPVP8 "), "a/9.jpg": []byte("<html>"), "a/99.jpg": nil,
	}))
	if err != nil {
		t.Fatal(err)
	}
	if set.Len() != 8 || !strings.Contains(strings.Join(set.Notes(), "\n"), "2 files (1 .gif, 1 .txt)") {
		t.Errorf("%d images, %q", set.Len(), set.Notes())
	}
	for i := range set.Len() {
		want := []string{5: "a WebP where a JPEG or PNG is wanted", 6: "a text of HTML or XML", 7: "is empty"}
		_, err := set.Get(t.Context(), data.Key{Index: i})
		if i < 5 && err != nil || i >= 5 && (err == nil || !strings.Contains(err.Error(), want[i])) {
			t.Errorf("image %d: %v, want %q", i, err, want[min(i, 7)])
		}
	}
}

// TestWithClasses: labels go by names.
func TestWithClasses(t *testing.T) {
	sets, err := OpenAll(write(t, map[string][]byte{"c/1.png": nil, "a/1.png": nil, "a/2.png": nil}))
	if err != nil || len(sets) != 1 {
		t.Fatal(sets, err)
	}
	s, err := sets[0].WithClasses([]string{"a", "b", "c"})
	if err != nil || s.Label(0) != 0 || s.Label(1) != 0 || s.Label(2) != 2 {
		t.Errorf("%+v, %v", s, err)
	}
	if _, err := sets[0].WithClasses([]string{"a", "b"}); err == nil || !strings.Contains(err.Error(), `classes ["c"]`) {
		t.Error(err)
	}
	if sets, err = OpenAll(write(t, map[string][]byte{"Test/a/1.png": nil})); err != nil || len(sets) != 1 || sets[0].Len() != 1 {
		t.Error(sets, err)
	}
	if sets, err = OpenAll(DigitsName); err != nil || len(sets) != 2 {
		t.Error(sets, err)
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
		"right inside":  {map[string][]byte{"1.JPG": some, "2.jpg": some}, "2 files (2 .jpg): want CIFAR's"},
		"in train":      {map[string][]byte{"train/1.jpg": some, "test/a/1.jpg": some}, "no directories in it, but 1 file (1 .jpg): want a directory of images for each class"},
		"both":          {map[string][]byte{"train/a/1.jpg": some, "Train/a/1.jpg": some, "test/a/1.jpg": some}, "directories Train and train: which is meant?"},
		"nested":        {map[string][]byte{"photos/Train/a/1.jpg": some, "photos/test/a/1.jpg": some}, "one directory, in which there is Train: name "},
		"other kinds":   {map[string][]byte{"train/a/1.webp": some, "test/a/1.jpg": some}, "but 1 other files: the class is empty"},
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
		part, err := Apply(set, 1, ResizeTo{Width: 10, Height: 10}).Get(t.Context(), data.Key{})
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
