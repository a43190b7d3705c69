// SPDX-License-Identifier: Apache-2.0

package nn

import "iter"

// Modules iterates over the model and everything in it that [Parameters] would
// look into, each once, with its name in the model: pointers to structs, in the
// order of the fields.
func Modules(model any) iter.Seq2[string, any] {
	return func(yield func(string, any) bool) {
		walk(model, func(path string, v any) bool {
			switch v.(type) {
			case *Parameter, *Buffer:
				return true
			}
			return yield(path, v)
		})
	}
}
