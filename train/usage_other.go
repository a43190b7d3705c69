// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package train

import "time"

// processUsage would return the processor time of the process, and its bytes in memory.
func processUsage() (cpu time.Duration, resident int64) { return 0, 0 }
