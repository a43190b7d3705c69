// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"errors"
	"strings"
	"testing"
	"unsafe"

	"github.com/cohort-ml/cohort/internal/device"
	"github.com/cohort-ml/cohort/internal/device/cuda/fake"
)

// planted are kernels that are wrong on purpose, beside one that is right. Each reverses 256
// numbers by way of shared memory.
const planted = `
extern "C" __global__ void right(float *y, const float *x) {
	__shared__ float s[256];
	s[threadIdx.x] = x[threadIdx.x];
	__syncthreads();
	y[threadIdx.x] = s[255 - threadIdx.x];
}
extern "C" __global__ void no_barrier(float *y, const float *x) {
	__shared__ float s[256];
	s[threadIdx.x] = x[threadIdx.x];
	y[threadIdx.x] = s[255 - threadIdx.x];
}
extern "C" __global__ void half_barrier(float *y, const float *x) {
	__shared__ float s[256];
	s[threadIdx.x] = x[threadIdx.x];
	if (threadIdx.x < 128) __syncthreads();
	y[threadIdx.x] = s[255 - threadIdx.x];
}
`

// openPlanted opens a device with these kernels.
func openPlanted(t *testing.T) *Device {
	d := open(t, Options{})
	c, err := theCompiler()
	if err != nil {
		t.Fatal(err)
	}
	code, err := c.Once("planted.cu", planted, "sm_90a")
	if err != nil {
		t.Fatal(err)
	}
	if d.modules["planted"], err = d.loadModule(code); err != nil {
		t.Fatal(err)
	}
	return d
}

// TestPlantedBarriers: a barrier that is missing gives NaN, and one that half of the threads
// skip is named.
func TestPlantedBarriers(t *testing.T) {
	f := startFake(t, fake.Options{Seed: 5})
	d := openPlanted(t)
	in := make([]float32, 256)
	for i := range in {
		in[i] = float32(i)
	}
	x, y := array(t, d, device.Float32, in, 256), array(t, d, device.Float32, in, 256)
	run := func(kernel string) { d.launch("reverse", kernel, grid{x: 1, threads: 256}, y.Ptr, x.Ptr) }
	wrong := func() (n int) {
		for i, v := range values[float32](d, y) {
			if v != float32(255-i) {
				n++
			}
		}
		return n
	}
	run("right")
	if n := wrong(); n != 0 {
		t.Errorf("with its barrier the kernel has %d wrong elements", n)
	}
	run("no_barrier")
	if wrong() == 0 {
		t.Error("without its barrier the kernel is right")
	}
	err := failure(d, func() { run("half_barrier") })
	var dead *DeadError
	if !errors.As(err, &dead) || dead.Op != "reverse" {
		t.Fatalf("the error is %v", err)
	}
	if want := "kernel half_barrier: a barrier that 128 of 256 threads never come to"; !strings.Contains(f.LastError(), want) {
		t.Errorf("the stand-in says %q, want %q", f.LastError(), want)
	}
}

// TestMissingEvent: a stream that reads what another writes is too early at some time, unless
// it waits for the other's event.
func TestMissingEvent(t *testing.T) {
	startFake(t, fake.Options{Seed: 6})
	d := open(t, Options{})
	second := new(uintptr)
	if err := d.context.in(callStreamCreate, uintptr(unsafe.Pointer(second)), 1); err != nil {
		t.Fatal(err)
	}
	d.streams = append(d.streams, *second)
	const n = 1000
	x, y := array(t, d, device.Float32, make([]float32, n), n), array(t, d, device.Float32, make([]float32, n), n)
	copyTo := func(ordered bool, value float64) (stale bool) {
		d.Fill(x, value)
		if ordered {
			if err := (source{d}).Order(1, 0); err != nil {
				t.Fatal(err)
			}
		}
		if err := d.context.in(callMemcpyDtoD, uintptr(y.Ptr), uintptr(x.Ptr), 4*n, d.streams[1]); err != nil {
			t.Fatal(err)
		}
		if err := d.context.in(callStreamSynchronize, d.streams[1]); err != nil {
			t.Fatal(err)
		}
		return values[float32](d, y)[n-1] != float32(value)
	}
	early := 0
	for i := range 100 {
		if copyTo(true, float64(i+1)) {
			t.Fatalf("copy %d is too early though it waits", i)
		}
		if copyTo(false, -float64(i+1)) {
			early++
		}
	}
	if early == 0 {
		t.Error("100 copies that do not wait are never too early")
	}
	t.Logf("%d of 100 copies that did not wait were too early", early)
}
