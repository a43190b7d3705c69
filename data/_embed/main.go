// SPDX-License-Identifier: Apache-2.0

// Command embed writes the text that OpenCorpus falls back on where there is
// no Go installation: this repository's own source, packed.
//
//	go run ./_embed -root .. -out embedded.txt.gz
package main

import (
	"bytes"
	"compress/gzip"
	"flag"
	"io/fs"
	"log"
	"os"
	"path/filepath"
	"strings"
)

// limit keeps the binary small.
const limit = 400 << 10

func main() {
	root := flag.String("root", "..", "the repository")
	out := flag.String("out", "embedded.txt.gz", "the file to write")
	flag.Parse()
	var text bytes.Buffer
	err := filepath.WalkDir(*root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := d.Name(); path != *root && (strings.HasPrefix(name, ".") || name == "testdata" || name == "examples") {
			if d.IsDir() {
				return filepath.SkipDir
			}
			return nil
		}
		if d.IsDir() || !strings.HasSuffix(path, ".go") {
			return nil
		}
		b, err := os.ReadFile(path)
		if err != nil || text.Len()+len(b) > limit || bytes.HasPrefix(b, []byte("// Code generated ")) {
			return err
		}
		text.Write(b)
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	var packed bytes.Buffer
	w, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := w.Write(text.Bytes()); err != nil {
		log.Fatal(err)
	}
	if err := w.Close(); err != nil {
		log.Fatal(err)
	}
	if err := os.WriteFile(*out, packed.Bytes(), 0o644); err != nil {
		log.Fatal(err)
	}
	log.Printf("%s: %d bytes of source in %d", *out, text.Len(), packed.Len())
}
