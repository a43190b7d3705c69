// SPDX-License-Identifier: Apache-2.0

package dist

import "time"

// timeout spells out what a duration is for.
type timeout = time.Duration

// DefaultTimeout limits an operation whose context has no earlier end. It is
// long, as in PyTorch, because ranks may legitimately wait for one that loads
// data; a rank that has died is noticed at once.
const DefaultTimeout timeout = 30 * time.Minute

// worldName is the name of the group of all ranks.
const worldName = "world"
