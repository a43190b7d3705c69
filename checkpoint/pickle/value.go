// SPDX-License-Identifier: Apache-2.0

package pickle

import "fmt"

// Tuple is a Python tuple.
type Tuple []any

// List is a Python list.
type List struct{ Items []any }

// Entry is a key of a dict with its value.
type Entry struct{ Key, Value any }

// Dict is a Python dict in the order of its entries. A key that was set twice has one entry,
// with the later value, if the key is a string.
type Dict struct{ Entries []Entry }

// Get returns the value of a string key. It looks at all entries.
func (d *Dict) Get(key string) (any, bool) {
	for i := len(d.Entries) - 1; i >= 0; i-- {
		if k, ok := d.Entries[i].Key.(string); ok && k == key {
			return d.Entries[i].Value, true
		}
	}
	return nil, false
}

// Set is a Python set, or a frozenset.
type Set struct {
	Items  []any
	Frozen bool
}

// Global is the name of a class or of a function.
type Global struct{ Module, Name string }

// String returns the name as Python writes it, such as collections.OrderedDict.
func (g Global) String() string { return g.Module + "." + g.Name }

// Object is what a call returns, or an instance of a class. Nothing was called: the object
// has the parts of the call.
type Object struct {
	Class Global // the class or function
	Args  Tuple
	// New tells an instance that was made without a call of its class's constructor
	// (NEWOBJ) from the result of a call (REDUCE).
	New     bool
	State   any     // what BUILD gives to the object, nil if nothing
	Items   []any   // appended to it, as to a subclass of list
	Entries []Entry // set in it, as in a subclass of dict
}

// Attrs returns the State as the attributes of a plain object. ok is false if the State is
// no dict with string keys. An object without State has no attributes.
func (o *Object) Attrs() (attrs map[string]any, ok bool) {
	attrs = map[string]any{}
	if o.State == nil {
		return attrs, true
	}
	d, ok := o.State.(*Dict)
	if !ok {
		return nil, false
	}
	for _, e := range d.Entries {
		name, ok := e.Key.(string)
		if !ok {
			return nil, false
		}
		attrs[name] = e.Value
	}
	return attrs, true
}

// Persistent is a persistent id: a reference to something that lies outside the pickle.
type Persistent struct{ ID any }

// Error says that bytes are no pickle that the decoder takes, or that a value cannot be
// encoded.
type Error struct {
	File    string // as given in Options; empty when encoding
	Offset  int    // byte of the pickle, -1 if none
	Problem string
}

func (e *Error) Error() string {
	s := "pickle: "
	if e.File != "" {
		s += e.File + ": "
	}
	s += e.Problem
	if e.Offset >= 0 {
		s += fmt.Sprintf(" (at byte %d of the pickle)", e.Offset)
	}
	return s
}

// ForbiddenError says that a pickle names a global that the caller does not know. Nothing of
// it was run.
type ForbiddenError struct {
	File   string
	Offset int
	Global Global
}

func (e *ForbiddenError) Error() string {
	s := "pickle: "
	if e.File != "" {
		s += e.File + ": "
	}
	return s + fmt.Sprintf("it asks for the Python global %q (at byte %d of the pickle), which is not on the list of allowed ones; nothing was run: save plain tensors and containers, and do not trust a file from elsewhere that asks for this",
		e.Global, e.Offset)
}
