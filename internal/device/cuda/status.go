// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"unsafe"

	"github.com/cohort-ml/cohort/internal/device"
	"github.com/cohort-ml/cohort/internal/dlopen"
)

// Status is what a process finds of CUDA.
type Status struct {
	// Built says whether this program can load libraries.
	Built bool `json:"built"`
	// Libraries are those that were found, in the order driver, compiler.
	Libraries []LibraryStatus `json:"libraries,omitempty"`
	Devices   []Info          `json:"devices,omitempty"`
	// Problems say what is missing, and what to do; none if devices can be used.
	Problems []string `json:"problems,omitempty"`
}

// LibraryStatus is a library that was found.
type LibraryStatus struct {
	Name    string `json:"name"`
	Path    string `json:"path"`
	Version string `json:"version"`
}

// Info describes a device.
type Info struct {
	Index int    `json:"index"`
	Model string `json:"model"`
	Bus   string `json:"bus,omitempty"`
	// Capability is the compute capability, such as "9.0".
	Capability string `json:"compute_capability"`
	Memory     uint64 `json:"memory_bytes"`
	// Multiprocessors is the number of units that run blocks of threads.
	Multiprocessors int `json:"multiprocessors"`
	// Peers are the devices whose memory this one can read.
	Peers []int `json:"peers,omitempty"`
}

// Usable reports whether a device can be opened, as far as one knows before.
func (s Status) Usable() bool { return len(s.Problems) == 0 && len(s.Devices) > 0 }

// Probe loads the libraries and lists the devices. It makes no context on a device.
func Probe() Status {
	s := Status{Built: dlopen.Built}
	d, err := theDriver()
	if err != nil {
		return s.with(err)
	}
	s.Libraries = append(s.Libraries, LibraryStatus{driverLibrary.what, d.lib.Name, d.version.String()})
	n, err := d.count()
	if err == nil && n == 0 {
		err = errors.New("the driver shows no device: " + remedyOf(codeNoDevice))
	}
	if err != nil {
		s = s.with(err)
	}
	for i := range n {
		info, err := d.info(i, n)
		if err != nil {
			s = s.with(fmt.Errorf("device %d: %w", i, err))
			continue
		}
		s.Devices = append(s.Devices, info)
	}
	return s.addCompiler(d.version)
}

func (s Status) addCompiler(of Version) Status {
	c, err := theCompiler()
	if err != nil {
		return s.with(err)
	}
	s.Libraries = append(s.Libraries, LibraryStatus{compilerLibrary.what, c.lib.Name, c.version.String()})
	if err := c.fits(of); err != nil {
		return s.with(err)
	}
	return s
}

func (s Status) with(err error) Status {
	s.Problems = append(s.Problems, err.Error())
	return s
}

// Write writes the status for people, a line for each library, device and problem.
func (s Status) Write(w io.Writer) {
	for _, l := range s.Libraries {
		fmt.Fprintf(w, "cuda %s: %s for CUDA %s\n", l.Name, l.Path, l.Version)
	}
	for _, d := range s.Devices {
		parts := []string{d.Model, "compute capability " + d.Capability, fmt.Sprintf("%d multiprocessors", d.Multiprocessors), device.Size(d.Memory)}
		if d.Bus != "" {
			parts = append(parts, "bus "+d.Bus)
		}
		for _, p := range d.Peers {
			parts = append(parts, fmt.Sprintf("reads the memory of %d", p))
		}
		fmt.Fprintf(w, "cuda device %d: %s\n", d.Index, strings.Join(parts, ", "))
	}
	for _, p := range s.Problems {
		fmt.Fprintf(w, "cuda: %s\n", p)
	}
}

// Attributes of devices that are asked for.
const (
	attributeMultiprocessors = 16
	attributeCapabilityMajor = 75
	attributeCapabilityMinor = 76
)

// info asks for what is known of a device, of n.
func (d *driver) info(index, n int) (Info, error) {
	out := Info{Index: index}
	dev, memory, number := new(int32), new(uint64), new(int32)
	text := make([]byte, 256)
	if err := d.call(callDeviceGet, uintptr(unsafe.Pointer(dev)), uintptr(index)); err != nil {
		return out, err
	}
	if err := d.call(callDeviceGetName, uintptr(unsafe.Pointer(unsafe.SliceData(text))), uintptr(len(text)), uintptr(*dev)); err != nil {
		return out, err
	}
	out.Model = zeroEnded(text)
	if err := d.call(callDeviceTotalMem, uintptr(unsafe.Pointer(memory)), uintptr(*dev)); err != nil {
		return out, err
	}
	out.Memory = *memory
	numbers := map[int]int{attributeMultiprocessors: 0, attributeCapabilityMajor: 0, attributeCapabilityMinor: 0}
	for a := range numbers {
		if err := d.call(callDeviceGetAttribute, uintptr(unsafe.Pointer(number)), uintptr(a), uintptr(*dev)); err != nil {
			return out, err
		}
		numbers[a] = int(*number)
	}
	out.Multiprocessors = numbers[attributeMultiprocessors]
	out.Capability = fmt.Sprintf("%d.%d", numbers[attributeCapabilityMajor], numbers[attributeCapabilityMinor])
	if d.call(callDeviceGetPCIBusID, uintptr(unsafe.Pointer(unsafe.SliceData(text))), uintptr(len(text)), uintptr(*dev)) == nil {
		out.Bus = zeroEnded(text)
	}
	for other := range n {
		peer := new(int32)
		if other == index || d.call(callDeviceGet, uintptr(unsafe.Pointer(peer)), uintptr(other)) != nil {
			continue
		}
		if d.call(callDeviceCanAccessPeer, uintptr(unsafe.Pointer(number)), uintptr(*dev), uintptr(*peer)) == nil && *number != 0 {
			out.Peers = append(out.Peers, other)
		}
	}
	return out, nil
}

// zeroEnded returns the text of a buffer before its first zero.
func zeroEnded(b []byte) string {
	text, _, _ := strings.Cut(string(b), "\x00")
	return text
}
