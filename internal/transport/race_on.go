// SPDX-License-Identifier: Apache-2.0

//go:build race

package transport

import "sync/atomic"

// The race detector does not know that what was done before bytes were
// written comes before what is done after they were read, unless package net
// makes both calls. These tell it so.

var order atomic.Int64

func sending()  { order.Add(1) }
func received() { order.Load() }
