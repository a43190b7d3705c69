// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cohort-ml/cohort/internal/dlopen"
	"github.com/cohort-ml/cohort/internal/envvar"
)

// ErrNotBuilt says that this program cannot load libraries.
var ErrNotBuilt = errors.New("built without CUDA: build it on Linux with go build -tags cuda ./cmd/cohort")

// minDriver is the oldest version of CUDA that a driver must know: 12.0.
const minDriver = Version(12000)

// Version is a version of CUDA as the driver writes it: 13000 for 13.0.
type Version int

func (v Version) String() string { return fmt.Sprintf("%d.%d", v/1000, v%1000/10) }

// Major returns 13 for 13.0.
func (v Version) Major() int { return int(v) / 1000 }

// LibraryError says that a library cannot be used: it is not there, lacks a function, or has
// a version that does not fit.
type LibraryError struct {
	Library string // what it is for: "driver" or "compiler"
	Path    string // "" if it is not found
	Reason  error
	Remedy  string
}

func (e *LibraryError) Error() string {
	what := "no " + e.Library
	if e.Path != "" {
		what = "the " + e.Library + " " + e.Path + " cannot be used"
	}
	return fmt.Sprintf("%s: %v: %s", what, e.Reason, e.Remedy)
}

func (e *LibraryError) Unwrap() error { return e.Reason }

// missing returns the error of a library that [dlopen.Search] has not opened.
func missing(l library, err error) error {
	if errors.Is(err, dlopen.ErrNotBuilt) {
		return ErrNotBuilt
	}
	remedy := fmt.Sprintf("%s, or name its directory in %s", l.install, envvar.CUDAPath)
	return &LibraryError{Library: l.what, Reason: err, Remedy: remedy}
}

// CallError is the error of a call of the driver.
type CallError struct {
	Call string // the function, such as cuMemAlloc_v2
	Code int    // as the driver returned it
	Text string // what the driver says about the code
}

func (e *CallError) Error() string {
	text := strings.TrimSpace(e.Text)
	if text == "" {
		text = "an error that the driver does not describe"
	}
	return fmt.Sprintf("%s returned %d: %s", e.Call, e.Code, text)
}

// Codes of the driver that are looked at.
const (
	codeOutOfMemory     = 2
	codeNoDevice        = 100
	codeInvalidDevice   = 101
	codeDeviceInUse     = 216 // by another process, exclusively
	codeNotReady        = 600
	codeSystemNotReady  = 802
	codeVersionMismatch = 803
)

// remedyOf says what may help where the driver does not start.
func remedyOf(code int) string {
	switch code {
	case codeNoDevice:
		return fmt.Sprintf("no GPU is visible: see nvidia-smi, and %s", envvar.VisibleGPUs)
	case codeSystemNotReady:
		return "start the fabric manager of this machine (nvidia-fabricmanager)"
	case codeVersionMismatch:
		return "the library and the kernel module of the driver are of two versions: load the module again, or restart the machine"
	}
	return "see whether nvidia-smi works"
}
