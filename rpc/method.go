// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"fmt"
	"regexp"
	"strings"
	"sync"

	"github.com/cohort-ml/cohort/rpc/internal/cbor"
	"github.com/cohort-ml/cohort/rpc/internal/link"
	"github.com/cohort-ml/cohort/rpc/internal/wire"
)

// Method is the name of a method and the types of its request (A) and response (R). Both
// sides share the value, which is usually a package variable. NewMethod registers nothing:
// [Serve] says which function answers the method.
//
// A and R may be structs, slices, arrays, maps, pointers, strings, bools, numbers, times,
// any, *tensor.Tensor and references, in any combination; struct{} means that there is
// nothing. Exported fields travel under their names. The tag `rpc:"name"` gives a field
// another name, `rpc:"-"` leaves it out, and `rpc:"name,optional"` allows it to be
// missing. An embedded struct whose type is exported travels as one field with fields of
// its own. Tensors arrive as new, contiguous tensors; several pointers to one tensor
// arrive as pointers to one tensor.
type Method[A, R any] struct {
	methodInfo
	args, result *cbor.Plan
	argPool      sync.Pool // of *A
	resultPool   sync.Pool // of *R
	refs         bool      // there may be references in the result
}

// methodInfo is the part of a method that does not depend on its types.
type methodInfo struct {
	name string
	text string // its types
	sig  uint64
	// hidden calls are the protocol's own: no shutdown waits for them.
	hidden bool
}

// maxName bounds the names of methods and agents.
const maxName = link.MaxName

var methodName = regexp.MustCompile(`^[A-Za-z0-9_./:-]{1,127}$`)

// NewMethod declares a method. A name has 1 to 127 letters, digits or any of "_./:-";
// names that begin with "cohort." belong to this module. NewMethod panics if a type cannot
// travel.
func NewMethod[A, R any](name string) *Method[A, R] {
	checkMethodName(name)
	m := &Method[A, R]{args: planOf[A]("request", name), result: planOf[R]("response", name)}
	m.methodInfo = newMethodInfo(name, m.args.Text+" -> "+m.result.Text)
	m.refs = hasRefs(m.result)
	m.argPool.New = func() any { return new(A) }
	m.resultPool.New = func() any { return new(R) }
	return m
}

func checkMethodName(name string) {
	if !methodName.MatchString(name) {
		panic(fmt.Sprintf("rpc: the method name %q: want 1 to %d letters, digits or any of _./:-", name, maxName))
	}
}

func newMethodInfo(name, text string) methodInfo {
	return methodInfo{name: name, text: text, sig: wire.Fingerprint(text), hidden: strings.HasPrefix(name, "cohort.rpc.") || strings.HasPrefix(name, "cohort.rref.")}
}

// Name returns the method's name.
func (m *Method[A, R]) Name() string { return m.name }

// Types returns the method's types as errors and the debug page show them:
// "{X tensor, Y tensor} -> tensor".
func (m *Method[A, R]) Types() string { return m.text }

// String implements fmt.Stringer.
func (m *Method[A, R]) String() string { return m.name + ": " + m.text }

// reserved says whether a name is this module's.
func reserved(name string) bool { return strings.HasPrefix(name, "cohort.") }
