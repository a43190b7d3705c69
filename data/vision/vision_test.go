// SPDX-License-Identifier: Apache-2.0

package vision

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/internal/seeded"
)

// diff says how two values differ, "" if they do not.
func diff(want, got any) string {
	if reflect.DeepEqual(want, got) {
		return ""
	}
	return fmt.Sprintf("got %+v, want %+v", got, want)
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// congruence is the generator of testdata/golden.py.
func congruence(width, height, channels int) Image {
	img := newImage(width, height, channels)
	s := uint32(12345)
	for i := range img.Pix {
		s = (s*1103515245 + 12345) % (1 << 31)
		img.Pix[i] = byte(s >> 16)
	}
	return img
}

// TestScale: scaling is Pillow's bilinear and bicubic filter to the last bit.
func TestScale(t *testing.T) {
	b, err := os.ReadFile("testdata/golden.json")
	if err != nil {
		t.Fatal(err)
	}
	var golden struct {
		Resize []struct {
			Width, Height, Channels int
			Box                     [4]int
			Size                    [2]int
			CRC, Cubic              uint32
		}
	}
	if err := json.Unmarshal(b, &golden); err != nil {
		t.Fatal(err)
	}
	if len(golden.Resize) < 10 {
		t.Fatalf("%d cases", len(golden.Resize))
	}
	for _, c := range golden.Resize {
		img := congruence(c.Width, c.Height, c.Channels)
		part := rectangle{c.Box[0], c.Box[1], c.Box[2] - c.Box[0], c.Box[3] - c.Box[1]}
		v, err := scaled(part, c.Size[0], c.Size[1])
		if err != nil {
			t.Fatal(err)
		}
		for cubic, want := range map[bool]uint32{false: c.CRC, true: c.Cubic} {
			v.cubic = cubic
			got := new(scaler).render(img, 0, 0, v)
			if err := got.check(); err != nil || got.Width != c.Size[0] || got.Height != c.Size[1] {
				t.Errorf("%+v: %d·%d, %v", c, got.Width, got.Height, err)
			}
			if crc := crc32.ChecksumIEEE(got.Pix); crc != want {
				t.Errorf("%+v, cubic %v: the pixels differ from Pillow's", c, cubic)
			}
		}
	}
}

func TestDigits(t *testing.T) {
	train, test, err := Digits()
	if err != nil {
		t.Fatal(err)
	}
	if train.Len()+test.Len() != 1797 || test.Len() < 355 || test.Len() > 359 {
		t.Errorf("%d images to train and %d to test", train.Len(), test.Len())
	}
	// The number of each digit is in the data's own description.
	want := []int{178, 182, 177, 183, 181, 182, 181, 179, 174, 180}
	all, tested := make([]int, 10), make([]int, 10)
	for _, s := range []*Set{train, test} {
		for i := range s.Len() {
			sample, err := s.Get(t.Context(), data.Key{Index: i})
			if err != nil {
				t.Fatal(err)
			}
			if err := sample.Image.check(); err != nil || sample.Image.Width != 8 || sample.Image.Height != 8 || sample.Label != s.Label(i) {
				t.Fatalf("image %d: %v, label %d", i, err, sample.Label)
			}
			all[sample.Label]++
			if s == test {
				tested[sample.Label]++
			}
		}
	}
	if d := diff(want, all); d != "" {
		t.Error(d)
	}
	for digit, n := range tested {
		if n != want[digit]/5 {
			t.Errorf("%d of %d images of digit %d are for testing", n, want[digit], digit)
		}
	}
	// The first row of the source's second image: 0,0,0,12,13,5,0,0.
	second, _ := train.Get(t.Context(), data.Key{Index: 1})
	if d := diff([]byte{0, 0, 0, 191, 207, 80, 0, 0}, second.Image.row(0)); d != "" || second.Label != 1 {
		t.Errorf("label %d, %s", second.Label, d)
	}
	if train.Fingerprint() == test.Fingerprint() {
		t.Error("both sets have one fingerprint")
	}
}

// idx makes a file of bytes.
func idx(elements []byte, dims ...int) []byte {
	b := []byte{0, 0, idxBytes, byte(len(dims))}
	for _, d := range dims {
		b = binary.BigEndian.AppendUint32(b, uint32(d))
	}
	return append(b, elements...)
}

func packed(t *testing.T, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// write makes files of a directory.
func write(t *testing.T, files map[string][]byte) string {
	t.Helper()
	dir := t.TempDir()
	for name, b := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func mnist(t *testing.T) map[string][]byte {
	return map[string][]byte{
		"train-images-idx3-ubyte.gz": packed(t, idx(congruence(3, 8, 1).Pix, 4, 2, 3)), "train-labels-idx1-ubyte": idx([]byte{0, 2, 1, 2}, 4),
		"t10k-images.idx3-ubyte": idx(congruence(3, 4, 1).Pix, 2, 2, 3), "t10k-labels-idx1-ubyte.gz": packed(t, idx([]byte{1, 0}, 2)),
	}
}

func TestMNIST(t *testing.T) {
	train, test, err := Open(write(t, mnist(t)))
	if err != nil {
		t.Fatal(err)
	}
	defer train.Close()
	defer test.Close()
	want := []Sample{}
	pix := congruence(3, 8, 1).Pix
	for i, label := range []int{0, 2, 1, 2} {
		want = append(want, Sample{Image{3, 2, 1, pix[6*i : 6*i+6]}, label})
	}
	for i := range want {
		got, err := train.Get(t.Context(), data.Key{Epoch: i, Index: i})
		if err != nil {
			t.Fatal(err)
		}
		if d := diff(want[i], got); d != "" {
			t.Error(d)
		}
	}
	if d := diff([]string{"0", "1", "2"}, test.Classes()); d != "" || test.Len() != 2 {
		t.Errorf("%d images: %s", test.Len(), d)
	}
}

// TestBadIDX: each kind of damage is one clear error.
func TestBadIDX(t *testing.T) {
	images := idx(congruence(3, 8, 1).Pix, 4, 2, 3)
	for name, c := range map[string]struct {
		file string
		b    []byte
		want string
	}{
		"empty":        {"t10k-images.idx3-ubyte", nil, "ends within the header"},
		"cut header":   {"t10k-images.idx3-ubyte", images[:9], "ends within the header"},
		"cut":          {"t10k-images.idx3-ubyte", images[:30], "30 bytes, but its header says [4 2 3], which makes 40"},
		"cut packed":   {"train-images-idx3-ubyte.gz", packed(t, images[:30]), "14 of the 24 bytes"},
		"torn packed":  {"train-images-idx3-ubyte.gz", packed(t, images)[:25], "unexpected EOF"},
		"long packed":  {"train-images-idx3-ubyte.gz", packed(t, append(images, 1)), "more bytes than the 24"},
		"magic":        {"train-labels-idx1-ubyte", []byte("PK\x03\x04"), "begins with 50 4b"},
		"type":         {"train-labels-idx1-ubyte", []byte{0, 0, 13, 1, 0, 0, 0, 1}, "type 0x0d"},
		"dims":         {"train-labels-idx1-ubyte", images, "3 dims, want 1 for labels"},
		"huge":         {"t10k-images.idx3-ubyte", idx(nil, 1<<31, 1<<13, 1<<13), "its header is damaged"},
		"none":         {"t10k-images.idx3-ubyte", idx(nil, 0, 2, 3), "dim 0 of the IDX file is 0"},
		"fewer labels": {"train-labels-idx1-ubyte", idx([]byte{1, 2}, 2), "2 labels for the 4 images"},
		"label":        {"t10k-labels-idx1-ubyte.gz", idx([]byte{1, 3}, 2), "label 3 of image 1 is outside the 3 classes"},
	} {
		files := mnist(t)
		files[c.file] = c.b
		_, _, err := Open(write(t, files))
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), c.file) {
			t.Errorf("%s: %v; want %q and the file's name", name, err, c.want)
		}
	}
	files := mnist(t)
	delete(files, "train-labels-idx1-ubyte")
	if _, _, err := Open(write(t, files)); err == nil || !strings.Contains(err.Error(), "no IDX file of the train labels") {
		t.Error(err)
	}
}

func cifarRecord(labels []byte, seed byte) []byte {
	b := append([]byte{}, labels...)
	for c := range 3 {
		for p := range cifarSide * cifarSide {
			b = append(b, byte(p)+byte(c)*50+seed)
		}
	}
	return b
}

func TestCIFAR(t *testing.T) {
	files := map[string][]byte{"test_batch.bin": cifarRecord([]byte{9}, 7), "batches.meta.txt": []byte("a\nb\nc\nd\ne\nf\ng\nh\ni\nj\n\n")}
	for i, name := range cifar10.train {
		files[name] = append(cifarRecord([]byte{byte(i)}, 1), cifarRecord([]byte{byte(i + 1)}, byte(i))...)
	}
	dir := write(t, files)
	train, test, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer train.Close()
	defer test.Close()
	s, err := train.Get(t.Context(), data.Key{Index: 5}) // the second of data_batch_3.bin
	if err != nil {
		t.Fatal(err)
	}
	if train.Len() != 10 || test.Len() != 1 || s.Label != 3 || train.Classes()[3] != "d" || test.Label(0) != 9 {
		t.Errorf("%d and %d images, label %d", train.Len(), test.Len(), s.Label)
	}
	if got := s.Image.row(1)[:6]; !bytes.Equal(got, []byte{34, 84, 134, 35, 85, 135}) {
		t.Errorf("row 1 begins with %v", got)
	}
	for name, c := range map[string]struct {
		file string
		b    []byte
		want string
	}{
		"cut":   {"data_batch_2.bin", make([]byte, 5000), "5000 bytes are no whole number"},
		"empty": {"data_batch_5.bin", nil, "no whole number"},
		"label": {"test_batch.bin", cifarRecord([]byte{10}, 0), "label 10 of image 0"},
		"names": {"batches.meta.txt", []byte("a\nb\n"), "2 names for 10 classes"},
	} {
		was := files[c.file]
		files[c.file] = c.b
		if _, _, err := Open(write(t, files)); err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), c.file) {
			t.Errorf("%s: %v", name, err)
		}
		files[c.file] = was
	}
	delete(files, "data_batch_4.bin")
	if _, _, err := Open(write(t, files)); err == nil || !strings.Contains(err.Error(), "data_batch_4.bin") {
		t.Error(err)
	}
	hundred := write(t, map[string][]byte{"train.bin": cifarRecord([]byte{3, 99}, 0), "test.bin": cifarRecord([]byte{19, 5}, 0)})
	train100, test100, err := Open(hundred)
	if err != nil {
		t.Fatal(err)
	}
	defer train100.Close()
	defer test100.Close()
	if train100.Label(0) != 99 || test100.Label(0) != 5 || len(test100.Classes()) != 100 {
		t.Errorf("labels %d and %d of %d", train100.Label(0), test100.Label(0), len(test100.Classes()))
	}
}

// TestTransformsArePure: the same key gives the same pixels, other keys others,
// and nobody writes into the source.
func TestTransformsArePure(t *testing.T) {
	source := congruence(40, 30, 3)
	before := bytes.Clone(source.Pix)
	ds := data.FromFunc(3, func(_ context.Context, _ data.Key) (Sample, error) { return Sample{source, 1}, nil })
	for name, f := range map[string]Transform{
		"crop": RandomCrop{30, 20, 4}, "resized": RandomResizedCrop{Width: 12, Height: 10},
	} {
		seen := map[string]bool{}
		for _, key := range []data.Key{{Epoch: 0, Index: 0}, {Epoch: 0, Index: 1}, {Epoch: 1, Index: 0}} {
			first, err := Apply(ds, 7, f, RandomFlip{}).Get(t.Context(), key)
			if err != nil {
				t.Fatal(err)
			}
			again, _ := Apply(ds, 7, f, RandomFlip{}).Get(t.Context(), key)
			if d := diff(first, again); d != "" {
				t.Errorf("%s: %v: %s", name, key, d)
			}
			seen[string(first.Image.Pix)] = true
		}
		other, _ := Apply(ds, 8, f, RandomFlip{}).Get(t.Context(), data.Key{})
		seen[string(other.Image.Pix)] = true
		if len(seen) != 4 {
			t.Errorf("%s: %d results of 3 keys and 2 seeds", name, len(seen))
		}
	}
	if !bytes.Equal(before, source.Pix) {
		t.Error("the source has changed")
	}
}

// TestParts: a random part has the area and proportion that were asked for, and
// lies inside.
func TestParts(t *testing.T) {
	seed := seeded.Of(t)
	r := rand.New(rand.NewPCG(seed, 0))
	flips, most, least := 0, 0.0, 1.0
	for range 2000 {
		w, h := 20+r.IntN(300), 20+r.IntN(300)
		p, err := RandomResizedCrop{Width: 1, Height: 1}.part(r, w, h)
		if err != nil {
			t.Fatal(err)
		}
		if p.x < 0 || p.y < 0 || p.width < 1 || p.height < 1 || p.x+p.width > w || p.y+p.height > h {
			t.Fatalf("%v of %d·%d", p, w, h)
		}
		share := float64(p.width*p.height) / float64(w*h)
		most, least = max(most, share), min(least, share)
		if out, _ := (RandomFlip{}).Apply(r, Image{2, 1, 1, []byte{1, 2}}); out.Pix[0] == 2 {
			flips++
		}
	}
	if most < 0.9 || least > 0.12 || flips < 880 || flips > 1120 {
		t.Errorf("shares of the area from %v to %v, %d flips of 2000", least, most, flips)
	}
	// Nothing of 3:4 to 4:3 with all of the area fits: the middle it is.
	p, err := RandomResizedCrop{Width: 1, Height: 1, MinArea: 1}.part(r, 300, 100)
	if err != nil || p != (rectangle{83, 0, 133, 100}) {
		t.Errorf("%v, %v", p, err)
	}
}

func TestCollate(t *testing.T) {
	grey := Image{2, 1, 1, []byte{0, 255}}
	b, err := Collate(3, Normalize{Mean: []float64{0.5}, Std: []float64{0.25}})([]Sample{{grey, 3}, {grey, 4}})
	if err != nil {
		t.Fatal(err)
	}
	want := Batch{Labels: []int64{3, 4}, N: 2, Channels: 3, Height: 1, Width: 2}
	for range 6 {
		want.Images = append(want.Images, -2, 1/(255*float32(0.25))*255-2)
	}
	b.memory = nil
	if d := diff(want, b); d != "" {
		t.Error(d)
	}
	colour := Image{1, 1, 3, []byte{10, 20, 30}}
	b, err = Collate(0, Normalize{})([]Sample{{colour, 0}})
	if err != nil || b.Images[2] != 30*float32(1.0/255) {
		t.Errorf("%+v, %v", b, err)
	}
	for name, samples := range map[string][]Sample{
		"none": nil, "sizes": {{grey, 0}, {Image{1, 1, 1, []byte{0}}, 0}}, "channels": {{grey, 0}, {colour, 0}}, "short": {{Image{2, 2, 1, []byte{0}}, 0}},
	} {
		if _, err := Collate(0, Normalize{})(samples); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := Collate(0, Normalize{Std: []float64{0}})([]Sample{{grey, 0}}); err == nil {
		t.Error("a deviation of 0 is no error")
	}
}
