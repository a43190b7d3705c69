// SPDX-License-Identifier: Apache-2.0

//go:build race

package native

import "sync/atomic"

// Ranks of tests that are processes but for having one of their own map what
// they share at different addresses, so that the race detector does not see
// that what was done before a piece was put into a pipe comes before what is
// done after it was taken out. These tell it so.

var order atomic.Int64

func sending()  { order.Add(1) }
func received() { order.Load() }
