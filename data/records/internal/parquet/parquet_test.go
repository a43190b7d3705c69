// SPDX-License-Identifier: Apache-2.0

package parquet

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestLZ4: copies that reach into themselves, long lengths, and what is damaged.
func TestLZ4(t *testing.T) {
	for _, c := range []struct{ packed, want string }{
		{"\x30abc", "abc"},
		{"\x14a\x01\x00\x10b", strings.Repeat("a", 9) + "b"},
		{"\x2fab\x02\x00\x05\x10c", strings.Repeat("ab", 13) + "c"},
		{"\xf0\x01" + strings.Repeat("x", 16), strings.Repeat("x", 16)},
	} {
		if b, err := unpackLZ4([]byte(c.packed), len(c.want)); err != nil || string(b) != c.want {
			t.Errorf("%q: %q, %v, want %q", c.packed, b, err, c.want)
		}
		if b, err := unpackLZ4([]byte(c.packed), len(c.want)-1); err == nil {
			t.Errorf("%q, too long: %q", c.packed, b)
		}
	}
	for _, packed := range []string{"\x30ab", "\x10a\x02\x00", "\x10a\x00\x00", "\x14a\x01", "\xf0", "\xf0\xff"} {
		if b, err := unpackLZ4([]byte(packed), 100); err == nil {
			t.Errorf("%q: %q", packed, b)
		}
	}
}

// TestFirstLevels: levels of the first files lie from the highest bit on, as the format's page of encodings shows.
func TestFirstLevels(t *testing.T) {
	p := &bigEndian{b: []byte{0b00000101, 0b00111001, 0b01110111}, width: 3}
	for want := range uint64(8) {
		if got, err := p.next(); err != nil || got != want {
			t.Errorf("%d, %v, want %d", got, err, want)
		}
	}
	if _, err := p.next(); err == nil {
		t.Error("there is no end")
	}
}

// FuzzFile: a damaged file is an error, or has other values; it never panics, and no error has two lines.
func FuzzFile(f *testing.F) {
	for _, name := range []string{"none", "zstd", "every1", "every2"} {
		b, err := os.ReadFile(filepath.Join("..", "..", "testdata", name+".parquet"))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		file, err := Open(bytes.NewReader(b), int64(len(b)))
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Fatal(err)
			}
			return
		}
		for _, g := range file.Groups {
			readAll(t, g, file.Root)
		}
	})
}

// readAll reads some values of each column below a node.
func readAll(t *testing.T, g Group, n *Node) {
	for _, child := range n.Children {
		readAll(t, g, child)
	}
	if !n.Leaf {
		return
	}
	c, err := g.Column(n)
	for i := 0; err == nil && i < 5000; i++ {
		_, err = c.Next()
	}
	if err != nil && strings.Contains(err.Error(), "\n") {
		t.Fatal(err)
	}
}
