// SPDX-License-Identifier: Apache-2.0

// Package kernels has the sources of the kernels of package cuda, in plain CUDA C without
// headers. A family is a file, which is compiled by itself with common.cuh before it.
//
// The sources are compiled by NVRTC for a GPU, and by g++ with the header of package fake for
// tests. resources.txt says how many registers and how much memory each kernel takes of each
// architecture; go generate writes it, with NVRTC found as package cuda finds it:
//
//	python3 -m pip install nvidia-cuda-nvrtc==13.0.88
//	go generate ./internal/device/cuda/kernels
package kernels

import (
	"embed"
	"fmt"
	"strings"
)

//go:generate go test -tags cuda -count=1 -run TestResources -update .

//go:embed *.cu *.cuh
var sources embed.FS

// Families are the names of the sources.
var Families = []string{"elementwise", "reduce", "matmul", "rows", "embedding", "index", "pointwise", "attention", "optimizer"}

// Archs are the architectures that the sources must compile for.
var Archs = []string{"sm_80", "sm_90a", "sm_100a"}

// Source returns the source of a family, as it is compiled.
func Source(family string) (string, error) {
	var b strings.Builder
	for _, name := range []string{"common.cuh", family + ".cu"} {
		text, err := sources.ReadFile(name)
		if err != nil {
			return "", fmt.Errorf("kernels: there is no family %s: want one of %s", family, strings.Join(Families, ", "))
		}
		b.Write(text)
	}
	return b.String(), nil
}
