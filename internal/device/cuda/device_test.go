// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"errors"
	"math"
	"os"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/cohort-ml/cohort/internal/device"
	"github.com/cohort-ml/cohort/internal/device/cuda/fake"
	"github.com/cohort-ml/cohort/internal/dlopen"
	"github.com/cohort-ml/cohort/internal/envvar"
)

// theFake is the stand-in for the driver, in a directory that TestMain removes.
var theFake struct {
	sync.Once
	dir string
	f   *fake.Fake
	err error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if theFake.f != nil {
		theFake.f.Stop()
	}
	if theFake.dir != "" {
		os.RemoveAll(theFake.dir)
	}
	os.Exit(code)
}

// startFake begins with a device of the stand-in.
func startFake(t *testing.T, o fake.Options) *fake.Fake {
	t.Helper()
	if !dlopen.Built {
		t.Skip("the driver is loaded only with -tags cuda")
	}
	theFake.Do(func() {
		if theFake.dir, theFake.err = os.MkdirTemp("", "cohort-fake-cuda-"); theFake.err == nil {
			theFake.f, theFake.err = fake.Build(theFake.dir)
		}
	})
	if errors.Is(theFake.err, fake.ErrNoCompiler) {
		t.Skip(theFake.err)
	}
	if theFake.err != nil {
		t.Fatal(theFake.err)
	}
	t.Setenv(string(envvar.CUDAPath), theFake.f.Dir)
	if err := theFake.f.Start(o); err != nil {
		t.Fatal(err)
	}
	return theFake.f
}

// open opens a device, which is closed after the test.
func open(t *testing.T, o Options) *Device {
	t.Helper()
	d, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil && !t.Failed() {
			var dead *DeadError
			if !errors.As(err, &dead) {
				t.Error(err)
			}
		}
	})
	return d
}

// array makes a contiguous array of new memory, which is freed after the test.
func array[T any](t *testing.T, d *Device, dtype device.DType, values []T, shape ...int) device.Array {
	t.Helper()
	size := int(unsafe.Sizeof(*new(T)))
	m := d.Alloc(len(values)*size, false)
	if len(values) > 0 {
		d.Write(m, 0, unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(values))), len(values)*size))
	}
	a := device.Array{Ptr: m.Ptr, DType: dtype, Shape: shape, Strides: make([]int, len(shape))}
	step := 1
	for i := len(shape) - 1; i >= 0; i-- {
		a.Strides[i] = step
		step *= shape[i]
	}
	return a
}

// values reads the elements of a contiguous array.
func values[T any](d *Device, a device.Array) []T {
	out := make([]T, a.NumElems())
	if len(out) > 0 {
		d.Read(device.Memory{Ptr: a.Ptr}, 0, unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(out))), len(out)*int(unsafe.Sizeof(out[0]))))
	}
	return out
}

// TestDeviceCopies: what is written is read, also when it is larger than pinned blocks, and
// the caller's memory is its own again at once. Fresh memory is NaN.
func TestDeviceCopies(t *testing.T) {
	startFake(t, fake.Options{Seed: 1})
	d := open(t, Options{})
	data := make([]float32, maxPinned/4*2+1000)
	for i := range data {
		data[i] = float32(i)
	}
	a := array(t, d, device.Float32, data, len(data))
	clear(data)
	for i, v := range values[float32](d, a) {
		if v != float32(i) {
			t.Fatalf("element %d is %v", i, v)
		}
	}
	fresh := device.Array{Ptr: d.Alloc(1<<20, false).Ptr, DType: device.Float32, Shape: []int{10}, Strides: []int{1}}
	if v := values[float32](d, fresh)[3]; v == v {
		t.Errorf("fresh memory has %v", v)
	}
	shared := device.Array{Ptr: d.Alloc(40, true).Ptr, DType: device.Float32, Shape: []int{10}, Strides: []int{1}}
	if v := values[float32](d, shared)[3]; v != 0 {
		t.Errorf("shared memory has %v", v)
	}
}

// TestStepRepeats: a step that repeats asks the driver for no memory.
func TestStepRepeats(t *testing.T) {
	f := startFake(t, fake.Options{Seed: 2})
	d := open(t, Options{Poison: true})
	x := array(t, d, device.Float32, make([]float32, 1000), 1000)
	step := func() {
		m := d.Alloc(4000, false)
		y := x
		y.Ptr = m.Ptr
		d.BinaryScalar(device.Add, y, x, 1)
		d.Copy(x, y)
		d.Free(m)
	}
	step()
	before, waits := f.Count(fake.Blocks), f.Count(fake.Waits)
	for range 50 {
		step()
	}
	if n := f.Count(fake.Blocks) - before; n != 0 {
		t.Errorf("50 steps asked the driver for %d blocks", n)
	}
	if n := f.Count(fake.Waits) - waits; n != 0 {
		t.Errorf("50 steps waited %d times", n)
	}
	if v := values[float32](d, x); v[0] != 51 || v[999] != 51 {
		t.Errorf("the elements are %v and %v, want 51", v[0], v[999])
	}
}

// TestOutOfMemory: the error has the sizes, and the device goes on.
func TestOutOfMemory(t *testing.T) {
	startFake(t, fake.Options{Memory: 64 << 20})
	d := open(t, Options{})
	held := d.Alloc(40<<20, false)
	func() {
		defer func() {
			v := recover()
			none, ok := v.(*OutOfMemoryError)
			if !ok {
				t.Fatalf("the panic is %v", v)
			}
			want := "cuda:0 is out of memory: 50 MiB are wanted; 40 MiB are in use"
			if !strings.HasPrefix(none.Error(), want) || !strings.Contains(none.Error(), "1 × 40 MiB") {
				t.Errorf("the error is %q", none)
			}
		}()
		d.Alloc(50<<20, false)
	}()
	d.Free(held)
	d.Free(d.Alloc(50<<20, false))
}

// TestFaults: what a kernel does wrong makes the device dead, with the operation, and the
// stand-in says where it was. What follows is the same error.
func TestFaults(t *testing.T) {
	for what, c := range map[string]struct {
		run  func(d *Device)
		says string
	}{
		"beyond the end": {func(d *Device) {
			m := d.Alloc(4096, false)
			d.Fill(device.Array{Ptr: m.Ptr, DType: device.Float32, Shape: []int{1100}, Strides: []int{1}}, 1)
		}, "kernel fill, block ("},
		"after free": {func(d *Device) {
			m := d.Alloc(4096, false)
			d.Free(m)
			d.Fill(device.Array{Ptr: m.Ptr, DType: device.Float32, Shape: []int{1}, Strides: []int{1}}, 1)
		}, "kernel fill, block (0, 0, 0), thread (0, 0, 0)"},
		"host pointer": {func(d *Device) {
			p := new([8]float32)
			m := d.Alloc(32, false)
			d.Copy(device.Array{Ptr: m.Ptr, DType: device.Float64, Shape: []int{4}, Strides: []int{1}}, device.Array{Ptr: unsafe.Pointer(p), DType: device.Float32, Shape: []int{4}, Strides: []int{1}})
		}, "kernel copy, block ("},
	} {
		t.Run(what, func(t *testing.T) {
			f := startFake(t, fake.Options{})
			d := open(t, Options{Allocator: AllocatorOptions{Direct: true}})
			err := failure(d, func() { c.run(d) })
			var dead *DeadError
			if !errors.As(err, &dead) || dead.Call != 1 || !strings.HasPrefix(err.Error(), "cuda:0 has failed, in call 1 (") || !strings.Contains(err.Error(), "illegal memory access") {
				t.Fatalf("the error is %v", err)
			}
			if !strings.Contains(f.LastError(), c.says) {
				t.Errorf("the stand-in says %q, want %q", f.LastError(), c.says)
			}
			defer func() {
				if v := recover(); v != dead {
					t.Errorf("the next call panics with %v", v)
				}
			}()
			d.Fill(device.Array{Ptr: d.streamPointer(), DType: device.Float32, Shape: []int{1}, Strides: []int{1}}, 1)
		})
	}
}

// failure runs calls and waits. A device may fail before or after a call returns.
func failure(d *Device, run func()) (err error) {
	defer func() {
		if dead, ok := recover().(*DeadError); ok {
			err = dead
		}
	}()
	run()
	return d.Synchronize()
}

// streamPointer is some pointer, for a call that does not happen.
func (d *Device) streamPointer() unsafe.Pointer { return pointer(d.streams[0]) }

// TestBadIndex: a kernel notes the first bad index, and the device goes on.
func TestBadIndex(t *testing.T) {
	startFake(t, fake.Options{Seed: 3})
	d := open(t, Options{})
	table := array(t, d, device.Float32, []float32{1, 2, 3, 4, 5, 6}, 3, 2)
	ids := array(t, d, device.Int64, []int64{2, 5, 0}, 3)
	out := array(t, d, device.Float32, make([]float32, 6), 3, 2)
	d.Gather(out, table, ids, &device.Check{Site: 77})
	want := device.Fault{Op: "embedding", Site: 77, Position: 1, Value: 5, Found: true}
	if f := d.Fault(true); f != want {
		t.Errorf("the fault is %+v", f)
	}
	if f := d.Fault(true); f.Found {
		t.Errorf("the fault is there again: %+v", f)
	}
	if v := values[float32](d, out); v[0] != 5 || v[5] != 2 {
		t.Errorf("the rows are %v", v)
	}
}

// TestOpenFails: each reason why there is no device is one error that says what to do.
func TestOpenFails(t *testing.T) {
	startFake(t, fake.Options{})
	if _, err := Open(Options{Index: 3}); err == nil || !strings.Contains(err.Error(), "there is no device 3: this process sees 1") {
		t.Errorf("of device 3: %v", err)
	}
	for what, c := range map[string]struct {
		o    fake.Options
		says string
	}{
		"old driver": {fake.Options{Version: 11080}, "it knows CUDA up to 11.8, and 12.0 is needed: install a newer driver"},
		"no device":  {fake.Options{InitCode: 100}, "cuInit returned 100: no CUDA-capable device is detected: no GPU is visible: see nvidia-smi, and CUDA_VISIBLE_DEVICES"},
	} {
		startFake(t, c.o)
		if _, err := loadDriver(); err == nil || !strings.HasSuffix(err.Error(), c.says) {
			t.Errorf("%s: %v", what, err)
		}
	}
	old := &Compiler{lib: &dlopen.Library{Name: "libnvrtc.so.13"}, version: 13000}
	if err := old.fits(12080); err == nil || !strings.Contains(err.Error(), "the driver runs code up to CUDA 12") {
		t.Errorf("a compiler that is too new: %v", err)
	}
}

// TestProbe: libraries and device are listed.
func TestProbe(t *testing.T) {
	if !dlopen.Built {
		s := Probe()
		if s.Built || s.Usable() || len(s.Problems) != 1 || s.Problems[0] != ErrNotBuilt.Error() {
			t.Errorf("%+v", s)
		}
		return
	}
	startFake(t, fake.Options{})
	s := Probe()
	if !s.Usable() || len(s.Libraries) != 2 || len(s.Devices) != 1 || s.Devices[0].Capability != "9.0" || s.Devices[0].Memory != 4<<30 {
		t.Errorf("%+v", s)
	}
	var b strings.Builder
	s.Write(&b)
	if !strings.Contains(b.String(), "cuda device 0: fake device, compute capability 9.0, 1 multiprocessors, 4 GiB") {
		t.Errorf("%s", b.String())
	}
}

// TestSumSquares: sums over several blocks are right.
func TestSumSquares(t *testing.T) {
	startFake(t, fake.Options{Seed: 4})
	d := open(t, Options{})
	xs, want := []device.Array{}, []float64{}
	for _, n := range []int{0, 1, 33, 40000} {
		v := make([]float32, n)
		sum := 0.0
		for i := range v {
			v[i] = float32(math.Sin(float64(i)))
			sum += float64(v[i]) * float64(v[i])
		}
		xs, want = append(xs, array(t, d, device.Float32, v, n)), append(want, sum)
	}
	out := array(t, d, device.Float64, make([]float64, len(xs)), len(xs))
	d.SumSquares(out, xs...)
	for i, v := range values[float64](d, out) {
		if !(math.Abs(v-want[i]) <= 1e-12*(1+want[i])) {
			t.Errorf("sum %d is %v, want %v", i, v, want[i])
		}
	}
}
