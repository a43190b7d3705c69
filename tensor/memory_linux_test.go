// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestOutOfMemory: a tensor for which the shell's limit leaves no memory is an error
// with its size and the limit; memory that is given back is used again.
func TestOutOfMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts this program again, which an emulator of another processor cannot")
	}
	const child = "TENSOR_TEST_OUT_OF_MEMORY"
	if os.Getenv(child) != "" {
		for _, shared := range []bool{false, true} {
			var held []*Tensor
			err := grow(&held, shared)
			fmt.Printf("shared %v: %v: %v\n", shared, errors.Is(err, ErrOutOfMemory), err)
			for _, x := range held {
				x.Free()
			}
			Zeros(4 << 20).Free()
		}
		return
	}
	for flag, want := range map[string][]string{
		"-v": {
			"shared false: true: tensor: allocate(float32[4194304]): out of memory: there are no 16777216 bytes on cpu",
			"shared true: true: tensor: allocate(float32[4194304]): out of memory",
			"the limit of a process's address space (ulimit -v) is 3145728000 bytes, of which ",
			"memory_linux_test.go",
		},
		"-d": {
			"shared false: true: tensor: allocate(float32[4194304]): out of memory",
			"the limit of a process's data (ulimit -d) is 3145728000 bytes",
		},
	} {
		c := exec.Command("sh", "-c", "ulimit "+flag+` 3072000 && exec "$0" -test.run '^TestOutOfMemory$'`, os.Args[0])
		c.Env = append(os.Environ(), child+"=1")
		out, err := c.CombinedOutput()
		if err != nil {
			t.Errorf("ulimit %s: %v\n%s", flag, err, out)
		}
		for _, w := range want {
			if !strings.Contains(string(out), w) {
				t.Errorf("ulimit %s: the output lacks %q:\n%s", flag, w, out)
			}
		}
	}
}

// grow makes tensors until there is no memory for another one, or there are 4 GiB.
func grow(held *[]*Tensor, shared bool) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = v.(error)
		}
	}()
	for range 256 {
		x := alloc(nil, CPU(), Float32, []int{4 << 20}, shared)
		*held = append(*held, x)
	}
	return nil
}
