// SPDX-License-Identifier: Apache-2.0

package jpeg

import (
	"bytes"
	"encoding/json"
	"errors"
	"hash/crc32"
	"image"
	stdjpeg "image/jpeg"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/internal/seeded"
)

// corpus returns the files of testdata.
func corpus(t testing.TB) map[string][]byte {
	t.Helper()
	paths, err := filepath.Glob("testdata/*.jpg")
	if err != nil || len(paths) < 15 {
		t.Fatalf("%d files, %v", len(paths), err)
	}
	files := map[string][]byte{}
	for _, p := range paths {
		if files[filepath.Base(p)], err = os.ReadFile(p); err != nil {
			t.Fatal(err)
		}
	}
	return files
}

func decode(d *Decoder, file []byte) (pix []byte, width, height int, err error) {
	width, height, err = d.Open(file)
	if err != nil {
		return nil, 0, 0, err
	}
	pix = make([]byte, 3*width*height)
	return pix, width, height, d.Decode(pix, 0, 0, width, height)
}

// TestAgainstPillow: the pixels are libjpeg's to the last bit.
func TestAgainstPillow(t *testing.T) {
	b, err := os.ReadFile("testdata/golden.json")
	if err != nil {
		t.Fatal(err)
	}
	var golden struct{ Files map[string][3]uint32 }
	if err := json.Unmarshal(b, &golden); err != nil {
		t.Fatal(err)
	}
	var d Decoder
	for name, file := range corpus(t) {
		pix, w, h, err := decode(&d, file)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		want := golden.Files[name]
		if got := [3]uint32{uint32(w), uint32(h), crc32.ChecksumIEEE(pix)}; got != want {
			t.Errorf("%s: %d·%d pixels, sum %d; Pillow has %d·%d, sum %d", name, w, h, got[2], want[0], want[1], want[2])
		}
	}
}

// TestParts: a part is the same pixels as in the whole.
func TestParts(t *testing.T) {
	seed := seeded.Of(t)
	r := rand.New(rand.NewPCG(seed, 0))
	var d Decoder
	for name, file := range corpus(t) {
		pix, w, h, err := decode(&d, file)
		if err != nil {
			t.Fatal(err)
		}
		for range 40 {
			x, y := r.IntN(w), r.IntN(h)
			pw, ph := 1+r.IntN(w-x), 1+r.IntN(h-y)
			part := make([]byte, 3*pw*ph)
			if _, _, err := d.Open(file); err != nil {
				t.Fatal(err)
			}
			if err := d.Decode(part, x, y, pw, ph); err != nil {
				t.Fatal(err)
			}
			for i := range ph {
				if !bytes.Equal(part[3*pw*i:3*pw*(i+1)], pix[3*(w*(y+i)+x):][:3*pw]) {
					t.Fatalf("%s: row %d of %d·%d at %d, %d differs", name, i, pw, ph, x, y)
				}
			}
		}
	}
}

// TestAgainstStandardLibrary: what the other encoder writes is decoded to much
// the same. Its decoder rounds differently and does not filter chroma.
func TestAgainstStandardLibrary(t *testing.T) {
	m := image.NewRGBA(image.Rect(0, 0, 90, 61))
	for i := range m.Pix {
		m.Pix[i] = byte(100 + i/40%100)
	}
	var file bytes.Buffer
	if err := stdjpeg.Encode(&file, m, nil); err != nil {
		t.Fatal(err)
	}
	want, err := stdjpeg.Decode(bytes.NewReader(file.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	got, w, h, err := decode(new(Decoder), file.Bytes())
	if err != nil || w != 90 || h != 61 {
		t.Fatal(w, h, err)
	}
	for i := range w * h {
		r, g, b, _ := want.At(i%w, i/w).RGBA()
		for c, v := range []uint32{r >> 8, g >> 8, b >> 8} {
			if d := int(v) - int(got[3*i+c]); d < -12 || d > 12 {
				t.Fatalf("pixel %d, %d channel %d: %d, image/jpeg has %d", i%w, i/w, c, got[3*i+c], v)
			}
		}
	}
}

// TestDamaged: whatever is cut off is an error, what has an end marker is an
// image all the same, as in Pillow, and nothing that is changed leads out of the
// buffers.
func TestDamaged(t *testing.T) {
	seed := seeded.Of(t)
	r := rand.New(rand.NewPCG(seed, 0))
	var d Decoder
	for name, file := range corpus(t) {
		for range 40 {
			cut := r.IntN(len(file) - 2)
			if _, _, _, err := decode(&d, file[:cut]); err == nil {
				t.Errorf("%s: no error for the first %d of %d bytes", name, cut, len(file))
			}
		}
		scan := bytes.LastIndex(file, []byte{0xff, sos}) + 16
		for range min(20, len(file)-scan) {
			cut := append(bytes.TrimRight(file[:scan+r.IntN(len(file)-scan)], "\xff"), 0xff, eoi)
			if _, _, _, err := decode(&d, cut); err != nil {
				t.Errorf("%s: the first %d of %d bytes and an end marker: %v", name, len(cut)-2, len(file), err)
			}
		}
		for range 60 {
			damaged := bytes.Clone(file)
			for range 1 + r.IntN(4) {
				damaged[r.IntN(len(file))] = byte(r.Uint32())
			}
			if w, h, err := d.Open(damaged); err == nil && w*h < 1<<20 {
				_ = d.Decode(make([]byte, 3*w*h), 0, 0, w, h) // an error or wrong pixels
			}
		}
	}
}

// TestThumbnail: a file that was cut off is told even where one of its markers
// holds another image, whole.
func TestThumbnail(t *testing.T) {
	files := corpus(t)
	file, small := files["420.jpg"], files["5x16.jpg"]
	withThumbnail := append([]byte{0xff, soi, 0xff, 0xe1, byte((len(small) + 2) >> 8), byte(len(small) + 2)}, small...)
	withThumbnail = append(withThumbnail, file[2:]...)
	var d Decoder
	whole, _, _, err := decode(&d, withThumbnail)
	if err != nil {
		t.Fatal(err)
	}
	if want, _, _, _ := decode(&d, file); !bytes.Equal(whole, want) {
		t.Error("other pixels with a thumbnail")
	}
	if _, _, err := d.Open(withThumbnail[:len(withThumbnail)-100]); err == nil || !strings.Contains(err.Error(), "cut off") {
		t.Errorf("cut off behind a thumbnail: %v", err)
	}
}

func TestRareKinds(t *testing.T) {
	file := corpus(t)["420.jpg"]
	at := bytes.Index(file, []byte{0xff, sof0})
	for name, change := range map[string]func(b []byte){
		"arithmetic":   func(b []byte) { b[at+1] = 0xc9 },
		"lossless":     func(b []byte) { b[at+1] = sof3 },
		"twelve bits":  func(b []byte) { b[at+4] = 12 },
		"odd sampling": func(b []byte) { b[at+11], b[at+14] = 0x31, 0x21 },
	} {
		b := bytes.Clone(file)
		change(b)
		if _, _, err := new(Decoder).Open(b); !errors.Is(err, ErrUnsupported) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, c := range map[string]struct {
		change func(b []byte)
		want   string
	}{
		"no pixels": {func(b []byte) { b[at+7], b[at+8] = 0, 0 }, "0·53 pixels"},
		"sampling":  {func(b []byte) { b[at+11] = 0x02 }, "sampling 0·2"},
		"no tables": {func(b []byte) { b[bytes.Index(b, []byte{0xff, sos})+6] = 0x22 }, "needs Huffman tables 2 and 2"},
		"no code": {func(b []byte) {
			counts := b[bytes.Index(b, []byte{0xff, dht})+5:][:16]
			for i := range counts[1:] { // all of one bit
				counts[0] += counts[1+i]
				counts[1+i] = 0
			}
		}, "needs Huffman tables 0 and 0"},
		"no quant": {func(b []byte) { b[at+12] = 3 }, "needs quantisation table 3"},
		"blocks":   {func(b []byte) { b[at+11] = 0x44 }, "18 blocks in an MCU"},
		"marker":   {func(b []byte) { b[bytes.Index(b, []byte{0xff, app0})+1] = 0x42 }, "marker 0x42 is none"},
	} {
		b := bytes.Clone(file)
		c.change(b)
		if _, _, _, err := decode(new(Decoder), b); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// TestDecodeKeepsItsMemory: a decoder that has seen a file takes nothing new
// for the next one like it.
func TestDecodeKeepsItsMemory(t *testing.T) {
	file := corpus(t)["420.jpg"]
	var d Decoder
	pix, w, h, err := decode(&d, file)
	if err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(20, func() {
		if _, _, err := d.Open(file); err != nil {
			t.Fatal(err)
		}
		if err := d.Decode(pix, 0, 0, w, h); err != nil {
			t.Fatal(err)
		}
	}); n > 0 {
		t.Errorf("%v allocations an image", n)
	}
}

func FuzzDecode(f *testing.F) {
	for _, file := range corpus(f) {
		f.Add(file, uint16(0), uint16(0))
		f.Add(file[:len(file)/2], uint16(3), uint16(5))
	}
	f.Fuzz(func(t *testing.T, file []byte, x, y uint16) {
		var d Decoder
		w, h, err := d.Open(file)
		if err != nil || w*h > 1<<18 {
			return
		}
		px, py := int(x)%w, int(y)%h
		part := make([]byte, 3*(w-px)*(h-py))
		partErr := d.Decode(part, px, py, w-px, h-py)
		whole := make([]byte, 3*w*h)
		if _, _, err := d.Open(file); err != nil {
			t.Fatal(err)
		}
		if err := d.Decode(whole, 0, 0, w, h); (err == nil) != (partErr == nil) {
			t.Fatalf("the whole: %v, the lower right of it: %v", err, partErr)
		} else if err != nil {
			return
		}
		for i := range h - py {
			if !bytes.Equal(part[3*(w-px)*i:3*(w-px)*(i+1)], whole[3*(w*(py+i)+px):][:3*(w-px)]) {
				t.Fatalf("row %d differs", py+i)
			}
		}
	})
}

func BenchmarkDecode(b *testing.B) {
	file := corpus(b)["fine.jpg"]
	var d Decoder
	pix, w, h, err := decode(&d, file)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(file)))
	for b.Loop() {
		if _, _, err := d.Open(file); err != nil {
			b.Fatal(err)
		}
		if err := d.Decode(pix, 0, 0, w, h); err != nil {
			b.Fatal(err)
		}
	}
}

// TestFillBytes: bytes that only fill up the place before a marker are passed
// once. A file of a megabyte can have a million restarts that stay at one marker.
func TestFillBytes(t *testing.T) {
	var d Decoder
	d.file = append(bytes.Repeat([]byte{0xff}, 1<<20), eoi)
	for range 2 {
		if err := d.restart(nil); err != nil {
			t.Fatal(err)
		}
		if left := len(d.file) - d.pos; left != 2 {
			t.Fatalf("%d bytes are left to look at, want the marker alone", left)
		}
	}
}
