// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"errors"
	"fmt"
	"strings"
	"unsafe"

	"github.com/cohort-ml/cohort/internal/device"
	"github.com/cohort-ml/cohort/internal/device/cuda/kernels"
)

// archOf returns the architecture that is compiled for, of a compute capability such as 9.0.
// Processors of Hopper and Blackwell have instructions that no later ones have, which the a
// stands for.
func archOf(capability string) string {
	arch := "sm_" + strings.ReplaceAll(capability, ".", "")
	if arch == "sm_90" || arch == "sm_100" {
		arch += "a"
	}
	return arch
}

// load compiles all kernels and loads them.
func (d *Device) load(c *Compiler, arch string) error {
	for _, family := range kernels.Families {
		source, err := kernels.Source(family)
		if err != nil {
			return err
		}
		code, err := c.Once(family+".cu", source, arch)
		if err != nil {
			return err
		}
		if d.modules[family], err = d.loadModule(code); err != nil {
			return fmt.Errorf("load the kernels %s: %w", family, err)
		}
	}
	return nil
}

func (d *Device) loadModule(code []byte) (uintptr, error) {
	module := new(uintptr)
	err := d.context.in(callModuleLoadData, uintptr(unsafe.Pointer(module)), uintptr(unsafe.Pointer(unsafe.SliceData(code))))
	return *module, err
}

// function looks a kernel up in the modules. The lock is held.
func (d *Device) function(kernel string) (uintptr, error) {
	fn, name := new(uintptr), zeroTerminated(kernel)
	var failed error
	for _, module := range d.modules {
		err := d.context.in(callModuleGetFunction, uintptr(unsafe.Pointer(fn)), module, uintptr(unsafe.Pointer(name)))
		if err == nil {
			return *fn, nil
		}
		failed = errors.Join(failed, err)
	}
	return 0, fmt.Errorf("there is no kernel %s: %w", kernel, failed)
}

// maxDims is how many dims a kernel knows.
const maxDims = 8

// layout is struct layout of common.cuh.
type layout struct {
	numDims int64
	shape   [maxDims]int64
	strides [4][maxDims]int64
}

// newLayout describes where the elements of operands of one shape lie. Dims of one element
// are left out, and dims that lie behind one another become one.
func newLayout(shape []int, operands ...device.Array) layout {
	l := layout{}
	n := -1
	for i, size := range shape {
		if size == 1 {
			continue
		}
		joined := n >= 0
		for k, a := range operands {
			joined = joined && l.strides[k][n] == int64(a.Strides[i]*size)
		}
		if !joined {
			n++
			if n == maxDims {
				panic(fmt.Sprintf("cuda: an operand of shape %v has more than %d dims that do not lie behind one another", shape, maxDims))
			}
			l.shape[n] = 1
		}
		l.shape[n] *= int64(size)
		for k, a := range operands {
			l.strides[k][n] = int64(a.Strides[i])
		}
	}
	if n < 0 {
		n, l.shape[0] = 0, 1
	}
	l.numDims = int64(n + 1)
	return l
}

// Threads of a block, and the most blocks of a kernel whose threads take several elements.
const (
	blockThreads = 256
	maxBlocks    = 1 << 14
)

// overElements is the grid of a kernel that takes n elements.
func overElements(n int) grid {
	return grid{x: max(1, min(maxBlocks, (n+blockThreads-1)/blockThreads)), threads: blockThreads}
}

// overRows is the grid of a kernel of which a warp takes a row.
func overRows(n int) grid {
	const rows = blockThreads / 32
	if n < rows {
		return grid{x: 1, threads: 32 * max(1, n)}
	}
	return grid{x: (n + rows - 1) / rows, threads: blockThreads}
}

// oneWarp is the grid of a kernel of 32 threads.
var oneWarp = grid{x: 1, threads: 32}
