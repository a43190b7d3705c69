// SPDX-License-Identifier: Apache-2.0

package flight

import (
	"fmt"
	"path"
	"runtime"
	"strings"
	"sync"
)

const (
	// maxFrames is how many return addresses make a call site: enough to reach
	// out of a backward pass that starts collectives.
	maxFrames = 24
	// maxSiteBytes bounds the text of a site.
	maxSiteBytes = 160

	module  = "github.com/cohort-ml/cohort/"
	distPkg = module + "dist"
)

// site is a stack from which calls are made. Its text is made when asked for.
type site struct {
	pcs  []uintptr
	once sync.Once
	text string
}

// newSite looks up the frames of the caller's caller. The recorder is locked.
func (r *Recorder) newSite(stack uint64) *site {
	if len(r.sites) >= maxSites {
		clear(r.sites)
	}
	var pcs [2 * maxFrames]uintptr // those of inlined functions count here
	n := runtime.Callers(3, pcs[:])
	s := &site{pcs: append([]uintptr(nil), pcs[:n]...)}
	r.sites[stack] = s
	return s
}

func (s *site) String() string {
	s.once.Do(func() { s.text = describe(s.pcs) })
	return s.text
}

// describe names the frame that made the call. Within the module's own
// packages that is the innermost one outside of package dist; a frame of
// somebody else's further out goes before it.
func describe(pcs []uintptr) string {
	frames := runtime.CallersFrames(pcs)
	nearest := ""
	for {
		f, more := frames.Next()
		switch kind := belongs(f.Function, f.File); {
		case kind == others:
			return siteText(f)
		case kind == modules && nearest == "":
			nearest = siteText(f)
		}
		if !more {
			return nearest
		}
	}
}

// owner says whose a frame is.
type owner uint8

const (
	others  owner = iota // a program's, an example's, a test's
	modules              // the module's, other than dist's
	nobodys              // dist's or the standard library's
)

func belongs(function, file string) owner {
	switch {
	case function == "":
		return nobodys
	case strings.HasSuffix(file, "_test.go"):
		return others
	}
	pkg := packageOf(function)
	switch {
	case pkg == distPkg || strings.HasPrefix(pkg, distPkg+"/"):
		return nobodys
	case standard(pkg):
		return nobodys
	case strings.HasPrefix(pkg, module) && !strings.HasPrefix(pkg, module+"examples/"):
		return modules
	}
	return others
}

// packageOf returns the import path of a function's package.
func packageOf(function string) string {
	slash := strings.LastIndexByte(function, '/')
	if dot := strings.IndexByte(function[slash+1:], '.'); dot >= 0 {
		return function[:slash+1+dot]
	}
	return function
}

// standard reports whether a package is one of the standard library's that
// call back.
func standard(pkg string) bool {
	first, _, _ := strings.Cut(pkg, "/")
	switch first {
	case "runtime", "iter", "slices", "maps", "sync", "sort", "testing", "reflect", "context", "time":
		return true
	}
	return false
}

// siteText is "dir/file.go:88 pkg.Func".
func siteText(f runtime.Frame) string {
	dir, file := path.Split(strings.ReplaceAll(f.File, `\`, "/"))
	function := f.Function
	if slash := strings.LastIndexByte(function, '/'); slash >= 0 {
		function = function[slash+1:]
	}
	text := fmt.Sprintf("%s:%d %s", path.Join(path.Base(dir), file), f.Line, function)
	if len(text) > maxSiteBytes {
		text = text[:maxSiteBytes] // an instance of a generic function names its types
	}
	return text
}
