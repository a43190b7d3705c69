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
	// out of a backward pass that starts collectives. Stacks that differ further
	// out only are one.
	maxFrames = 48
	// maxSiteBytes bounds the text of a site.
	maxSiteBytes = 160

	module = "github.com/cohort-ml/cohort/"
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

// Here returns the call site of who calls it, for calls that are not recorded.
func Here() string {
	var pcs [2 * maxFrames]uintptr
	return describe(pcs[:runtime.Callers(2, pcs[:])])
}

func (s *site) String() string {
	s.once.Do(func() { s.text = describe(s.pcs) })
	return s.text
}

// describe names the frame that made the call: the innermost of the program's
// own. A program that is the module's, or a goroutine of its packages, has none;
// then it is the innermost of a recipe, such as the trainer's, or of a wrapper,
// such as DDP's.
func describe(pcs []uintptr) string {
	frames := runtime.CallersFrames(pcs)
	nearest := [wrappers + 1]string{}
	for {
		f, more := frames.Next()
		o := ownerOf(f.Function, f.File)
		if o == programs {
			return siteText(f)
		}
		if o <= wrappers && nearest[o] == "" {
			nearest[o] = siteText(f)
		}
		if !more || o == commands {
			if nearest[recipes] != "" {
				return nearest[recipes]
			}
			return nearest[wrappers]
		}
	}
}

// owner says whose a frame is.
type owner uint8

const (
	programs owner = iota // a user's, an example's, a test's
	recipes               // the module's packages that are whole jobs, and models
	wrappers              // its other packages but dist
	commands              // its own program: what is further out is not of interest
	nobodys               // dist's, or of the standard library's that call back
)

func ownerOf(function, file string) owner {
	if function == "" {
		return nobodys
	}
	pkg := packageOf(function)
	inside, ours := strings.CutPrefix(pkg, module)
	tree, _, _ := strings.Cut(inside, "/")
	switch {
	case strings.HasSuffix(file, "_test.go"), ours && tree == "examples":
		return programs
	case pkg == "main" && strings.HasPrefix(file, sourceRoot()+"cmd/"):
		return commands
	case !ours && !callsBack(pkg):
		return programs
	case !ours || tree == "dist":
		return nobodys
	case tree == "train" || tree == "models" || strings.HasPrefix(inside, "internal/bench"):
		return recipes
	}
	return wrappers
}

// sourceRoot is where the module's files are as the compiler has called them.
func sourceRoot() string {
	_, file, _, _ := runtime.Caller(0)
	return strings.TrimSuffix(file, "dist/internal/flight/site.go")
}

// packageOf returns the import path of a function's package.
func packageOf(function string) string {
	slash := strings.LastIndexByte(function, '/')
	if dot := strings.IndexByte(function[slash+1:], '.'); dot >= 0 {
		return function[:slash+1+dot]
	}
	return function
}

// callsBack reports whether a package is one of the standard library's that
// programs run their functions by.
func callsBack(pkg string) bool {
	switch first, _, _ := strings.Cut(pkg, "/"); first {
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
