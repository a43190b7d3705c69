// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"unsafe"

	"github.com/cohort-ml/cohort/internal/dlopen"
)

// call is a function of the driver.
type call int

const (
	callInit call = iota
	callDriverGetVersion
	callGetErrorString
	callDeviceGetCount
	callDeviceGet
	callDeviceGetName
	callDeviceGetAttribute
	callDeviceTotalMem
	callDeviceGetPCIBusID
	callDeviceCanAccessPeer
	callPrimaryCtxRetain
	callPrimaryCtxRelease
	callCtxSetCurrent
	callCtxSynchronize
	callMemAlloc
	callMemFree
	callMemHostAlloc
	callMemFreeHost
	callMemcpyHtoD
	callMemcpyDtoH
	callMemcpyDtoD
	callMemsetD8
	callMemsetD32
	callStreamCreate
	callStreamDestroy
	callStreamSynchronize
	callStreamWaitEvent
	callEventCreate
	callEventDestroy
	callEventRecord
	callEventQuery
	callEventSynchronize
	callModuleLoadData
	callModuleUnload
	callModuleGetFunction
	callLaunchKernel
	numCalls
)

// symbols are the names of the calls. A function whose meaning has changed has a number at
// the end of its name, so the name is also a check of the version.
var symbols = [numCalls]string{
	callInit: "cuInit", callDriverGetVersion: "cuDriverGetVersion", callGetErrorString: "cuGetErrorString",
	callDeviceGetCount: "cuDeviceGetCount", callDeviceGet: "cuDeviceGet", callDeviceGetName: "cuDeviceGetName",
	callDeviceGetAttribute: "cuDeviceGetAttribute", callDeviceTotalMem: "cuDeviceTotalMem_v2",
	callDeviceGetPCIBusID: "cuDeviceGetPCIBusId", callDeviceCanAccessPeer: "cuDeviceCanAccessPeer",
	callPrimaryCtxRetain: "cuDevicePrimaryCtxRetain", callPrimaryCtxRelease: "cuDevicePrimaryCtxRelease_v2",
	callCtxSetCurrent: "cuCtxSetCurrent", callCtxSynchronize: "cuCtxSynchronize",
	callMemAlloc: "cuMemAlloc_v2", callMemFree: "cuMemFree_v2", callMemHostAlloc: "cuMemHostAlloc", callMemFreeHost: "cuMemFreeHost",
	callMemcpyHtoD: "cuMemcpyHtoDAsync_v2", callMemcpyDtoH: "cuMemcpyDtoHAsync_v2", callMemcpyDtoD: "cuMemcpyDtoDAsync_v2",
	callMemsetD8: "cuMemsetD8Async", callMemsetD32: "cuMemsetD32Async",
	callStreamCreate: "cuStreamCreate", callStreamDestroy: "cuStreamDestroy_v2", callStreamSynchronize: "cuStreamSynchronize",
	callStreamWaitEvent: "cuStreamWaitEvent",
	callEventCreate:     "cuEventCreate", callEventDestroy: "cuEventDestroy_v2", callEventRecord: "cuEventRecord",
	callEventQuery: "cuEventQuery", callEventSynchronize: "cuEventSynchronize",
	callModuleLoadData: "cuModuleLoadData", callModuleUnload: "cuModuleUnload", callModuleGetFunction: "cuModuleGetFunction",
	callLaunchKernel: "cuLaunchKernel",
}

// driver is the driver's library, which is loaded and initialised once in a process.
type driver struct {
	lib     *dlopen.Library
	fn      [numCalls]uintptr
	version Version
}

// theDriver loads the driver. Its errors are *LibraryError, ErrNotBuilt or *CallError.
var theDriver = sync.OnceValues(loadDriver)

func loadDriver() (*driver, error) {
	handlers := dlopen.SaveHandlers()
	d, err := startDriver()
	_, restored := handlers.Restore()
	if err = errors.Join(err, restored); err != nil {
		return nil, err
	}
	return d, nil
}

func startDriver() (*driver, error) {
	lib, err := driverLibrary.open()
	if err != nil {
		return nil, err
	}
	d := &driver{lib: lib}
	if err := driverLibrary.resolve(lib, symbols[:], d.fn[:]); err != nil {
		return nil, err
	}
	version := new(int32)
	if err := d.call(callDriverGetVersion, uintptr(unsafe.Pointer(version))); err != nil {
		return nil, err
	}
	if d.version = Version(*version); d.version < minDriver {
		return nil, &LibraryError{Library: driverLibrary.what, Path: lib.Name, Reason: fmt.Errorf("it knows CUDA up to %v, and %v is needed", d.version, minDriver), Remedy: "install a newer driver"}
	}
	if err := d.call(callInit, 0); err != nil {
		var failed *CallError
		if errors.As(err, &failed) {
			return nil, &LibraryError{Library: driverLibrary.what, Path: lib.Name, Reason: err, Remedy: remedyOf(failed.Code)}
		}
		return nil, err
	}
	return d, nil
}

// call calls the driver, and returns a *CallError if it fails.
//
//go:uintptrescapes
func (d *driver) call(c call, args ...uintptr) error {
	code := int32(dlopen.Call(d.fn[c], args...))
	if code == 0 {
		return nil
	}
	return d.failed(c, code)
}

func (d *driver) failed(c call, code int32) error {
	text := new(uintptr)
	dlopen.Call(d.fn[callGetErrorString], uintptr(code), uintptr(unsafe.Pointer(text)))
	return &CallError{symbols[c], int(code), textAt(*text, 200)}
}

// context is the primary context of a device: what its calls need to be current.
type context struct {
	*driver
	device int32
	handle uintptr
}

// in calls the driver with the context current on this thread.
//
//go:uintptrescapes
func (x *context) in(c call, args ...uintptr) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if code := int32(dlopen.Call(x.fn[callCtxSetCurrent], x.handle)); code != 0 {
		return x.failed(callCtxSetCurrent, code)
	}
	return x.call(c, args...)
}

// retain makes the primary context of a device, or takes part in it.
func (d *driver) retain(index int) (*context, error) {
	x := &context{driver: d}
	dev, handle := new(int32), new(uintptr)
	if err := d.call(callDeviceGet, uintptr(unsafe.Pointer(dev)), uintptr(index)); err != nil {
		return nil, deviceError(d, index, err)
	}
	if err := d.call(callPrimaryCtxRetain, uintptr(unsafe.Pointer(handle)), uintptr(*dev)); err != nil {
		return nil, deviceError(d, index, err)
	}
	x.device, x.handle = *dev, *handle
	return x, nil
}

// deviceError says why a device cannot be opened.
func deviceError(d *driver, index int, err error) error {
	var failed *CallError
	if !errors.As(err, &failed) {
		return err
	}
	switch failed.Code {
	case codeInvalidDevice:
		n, _ := d.count()
		return fmt.Errorf("there is no device %d: this process sees %d (cohort devices lists them): %w", index, n, err)
	case codeDeviceInUse:
		return fmt.Errorf("device %d is in use by another process, which has it for itself: choose another device, or end that process: %w", index, err)
	}
	return fmt.Errorf("device %d: %w", index, err)
}

// count returns the number of devices that this process sees.
func (d *driver) count() (int, error) {
	n := new(int32)
	err := d.call(callDeviceGetCount, uintptr(unsafe.Pointer(n)))
	return int(*n), err
}
