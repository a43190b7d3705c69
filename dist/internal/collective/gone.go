// SPDX-License-Identifier: Apache-2.0

package collective

import "errors"

// ErrGone is the cause in a [RankError] about a rank that has closed its connection
// on a wire that does not tell why: its process has ended, or it has left the group
// while others still needed it.
var ErrGone = errors.New("closed its connection: its process has ended, or it has left the group")
