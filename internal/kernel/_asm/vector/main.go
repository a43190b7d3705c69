// SPDX-License-Identifier: Apache-2.0

// Command vector writes the assembly of the kernels on vectors and rows. Run it
// by go generate in internal/kernel.
//
// The kernels come in sets, one assembly file each. Every kernel is written once
// against [lanes] and emitted for AVX-512 (suffix 512) and AVX2 with FMA (suffix
// 256). The Go twins are in the files of package kernel named …_portable.go.
package main

import (
	"bytes"
	"flag"
	"log"
	"os"
	"regexp"

	. "github.com/mmcloughlin/avo/build"
)

// sets are the kernels of each assembly file.
var sets = map[string]func(g *lanes){
	"vector": func(g *lanes) {
		g.elementwise()
		g.sums()
		g.columnSums()
		g.layerNorm()
		g.layerNormBackward()
		g.softmax()
		g.softmaxBackward()
		g.maxAndSumExp()
	},
	"optimizers":  func(g *lanes) { g.optimizers() },
	"transformer": func(g *lanes) { g.transformer() },
	"channels":    func(g *lanes) { g.channels() },
	"collective":  func(g *lanes) { g.merges() },
	"elements": func(g *lanes) {
		g.dropout()
		if !g.wide() {
			transpose()
		}
	},
}

func main() {
	name := flag.String("set", "vector", "which kernels to write")
	flag.Parse()
	set, ok := sets[*name]
	if !ok {
		log.Fatalf("there is no set %q", *name)
	}
	for _, g := range []*lanes{{width: 16, suffix: "512"}, {width: 8, suffix: "256"}} {
		set(g)
	}
	emitTables()
	Generate()
	out := flag.Lookup("out").Value.String()
	for _, path := range []string{out, flag.Lookup("stubs").Value.String()} {
		text, err := os.ReadFile(path)
		if err != nil {
			log.Fatal(err)
		}
		if path == out {
			checkAVX2(text)
		}
		text = append([]byte("// SPDX-License-Identifier: Apache-2.0\n\n"), bytes.TrimLeft(text, "\n")...)
		if err := os.WriteFile(path, text, 0o644); err != nil {
			log.Fatal(err)
		}
	}
}

// checkAVX2 makes sure that no AVX2 kernel was given one of the registers that
// only AVX-512 has: the assembler would encode it without a word.
func checkAVX2(text []byte) {
	upper := regexp.MustCompile(`\b(Z\d+|K\d|[XY](1[6-9]|[23]\d))\b`)
	for _, f := range regexp.MustCompile(`(?s)TEXT ·(\w+)\(SB\).*?\tRET\n`).FindAllSubmatch(text, -1) {
		if bytes.HasSuffix(f[1], []byte("256")) {
			if r := upper.Find(f[0]); r != nil {
				log.Fatalf("%s uses %s: too many registers for AVX2", f[1], r)
			}
		}
	}
}
