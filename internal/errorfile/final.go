// SPDX-License-Identifier: Apache-2.0

package errorfile

// Final is an error that the same worker would end with again, whatever else happens:
// of its settings, its files or its data. A launcher does not start it again for that.
type Final struct{ Err error }

func (e *Final) Error() string { return e.Err.Error() }

// Unwrap returns the error.
func (e *Final) Unwrap() error { return e.Err }
