// SPDX-License-Identifier: Apache-2.0

package png

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"hash/crc32"
	"image"
	"image/color"
	stdpng "image/png"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/internal/seeded"
)

type golden struct {
	Name          string
	File          []byte
	Width, Height int
	CRC           uint32
}

// corpus returns the files that testdata/golden.py made.
func corpus(t testing.TB) []golden {
	t.Helper()
	b, err := os.ReadFile("testdata/golden.json")
	if err != nil {
		t.Fatal(err)
	}
	var g struct{ Files []golden }
	if err := json.Unmarshal(b, &g); err != nil || len(g.Files) < 40 {
		t.Fatal(len(g.Files), err)
	}
	return g.Files
}

func decode(d *Decoder, file []byte) (pix []byte, width, height int, err error) {
	width, height, err = d.Open(file)
	if err != nil {
		return nil, 0, 0, err
	}
	pix = make([]byte, 3*width*height)
	return pix, width, height, d.Decode(pix, 0, 0, width, height)
}

// TestAgainstPillow: the pixels are Pillow's to the last bit.
func TestAgainstPillow(t *testing.T) {
	var d Decoder
	for _, c := range corpus(t) {
		pix, w, h, err := decode(&d, c.File)
		if err != nil || w != c.Width || h != c.Height || crc32.ChecksumIEEE(pix) != c.CRC {
			t.Errorf("%s: %d·%d pixels, sum %d, %v; Pillow has %d·%d, sum %d", c.Name, w, h, crc32.ChecksumIEEE(pix), err, c.Width, c.Height, c.CRC)
		}
	}
}

// TestParts: a part is the same pixels as in the whole.
func TestParts(t *testing.T) {
	r := rand.New(rand.NewPCG(seeded.Of(t), 0))
	var d Decoder
	for _, c := range corpus(t) {
		pix, w, h, err := decode(&d, c.File)
		if err != nil {
			t.Fatal(err)
		}
		for range 20 {
			x, y := r.IntN(w), r.IntN(h)
			pw, ph := 1+r.IntN(w-x), 1+r.IntN(h-y)
			part := make([]byte, 3*pw*ph)
			if _, _, err := d.Open(c.File); err != nil {
				t.Fatal(err)
			}
			if err := d.Decode(part, x, y, pw, ph); err != nil {
				t.Fatal(err)
			}
			for i := range ph {
				if !bytes.Equal(part[3*pw*i:3*pw*(i+1)], pix[3*(w*(y+i)+x):][:3*pw]) {
					t.Fatalf("%s: row %d of %d·%d at %d, %d differs", c.Name, i, pw, ph, x, y)
				}
			}
		}
	}
}

// TestBroken: what is wrong is said.
func TestBroken(t *testing.T) {
	file := corpus(t)[0].File
	at := bytes.Index(file, []byte("IDAT"))
	withSum := func(change func(header []byte)) func([]byte) []byte {
		return func(b []byte) []byte {
			change(b[16:])
			binary.BigEndian.PutUint32(b[29:], crc32.ChecksumIEEE(b[12:29]))
			return b
		}
	}
	for name, c := range map[string]struct {
		change func(b []byte) []byte
		want   string
	}{
		"another file": {func(b []byte) []byte { return b[1:] }, "not a PNG file"},
		"a sum":        {func(b []byte) []byte { b[20]++; return b }, "the checksum of chunk IHDR is wrong"},
		"no pixels":    {withSum(func(h []byte) { h[3] = 0 }), "an image of 0·"},
		"too wide":     {withSum(func(h []byte) { h[0] = 0x80 }), "pixels"},
		"kind":         {withSum(func(h []byte) { h[9] = 1 }), "kind 1"},
		"depth":        {withSum(func(h []byte) { h[8] = 3 }), "3 bits"},
		"in a header":  {func(b []byte) []byte { return b[:20] }, "cut off"},
		"in an image":  {func(b []byte) []byte { return b[:at+8] }, "cut off"},
		"no image":     {func(b []byte) []byte { return append(b[:at-4:at-4], b[len(b)-12:]...) }, "no image"},
		"a name":       {func(b []byte) []byte { b[at] = 0; return b }, "is called"},
		"image bytes":  {func(b []byte) []byte { b[at+4] ^= 0xff; return b }, "zlib"},
	} {
		if _, _, _, err := decode(new(Decoder), c.change(bytes.Clone(file))); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, c := range corpus(f) {
		f.Add(c.File, uint16(0), uint16(0))
		f.Add(c.File[:len(c.File)/2], uint16(3), uint16(5))
	}
	f.Fuzz(func(t *testing.T, file []byte, x, y uint16) {
		var d Decoder
		w, h, err := d.Open(file)
		if err != nil || w > 1<<12 || h > 1<<12 || w*h > 1<<18 {
			return
		}
		px, py := int(x)%w, int(y)%h
		part := make([]byte, 3*(w-px)*(h-py))
		partErr := d.Decode(part, px, py, w-px, h-py)
		whole, _, _, err := decode(&d, file)
		if (err == nil) != (partErr == nil) {
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
	m := image.NewNRGBA(image.Rect(0, 0, 500, 375))
	for i := range 500 * 375 {
		x, y := i%500, i/500
		m.SetNRGBA(x, y, color.NRGBA{byte(x + y/3), byte(x * y / 500), byte(200 - y/2 + i%7), 255})
	}
	var file bytes.Buffer
	if err := stdpng.Encode(&file, m); err != nil {
		b.Fatal(err)
	}
	b.Run("here", func(b *testing.B) {
		var d Decoder
		pix := make([]byte, 3*500*375)
		for b.Loop() {
			if _, _, err := d.Open(file.Bytes()); err != nil {
				b.Fatal(err)
			}
			if err := d.Decode(pix, 0, 0, 500, 375); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("standard", func(b *testing.B) {
		for b.Loop() {
			if _, err := stdpng.Decode(bytes.NewReader(file.Bytes())); err != nil {
				b.Fatal(err)
			}
		}
	})
}
