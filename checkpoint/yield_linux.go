// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// writerNice is the nice value of the threads that write beside training: they get about a
// tenth of a core that training wants too.
const writerNice = 10

// yieldThread lets training go first: the goroutine keeps its thread, which ends with it, and
// the thread is nice. An error changes nothing but the speed.
func yieldThread() {
	runtime.LockOSThread()
	_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), writerNice)
}
