// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// lowestPriority is that of a process to which others give a processor only when they have no
// use for it.
const lowestPriority = 19

// toBackground gives this process the lowest priority on all processors that it may use; it may
// have been started by a rank that is bound to one.
func toBackground() error {
	var all unix.CPUSet
	for i := range 8 * len(all) * 8 {
		all.Set(i)
	}
	// Of each thread that there is: the later ones take after those that start them.
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return err
	}
	for _, t := range threads {
		id, err := strconv.Atoi(t.Name())
		if err != nil {
			return fmt.Errorf("the thread %q: %w", t.Name(), err)
		}
		_ = unix.SchedSetaffinity(id, &all) // then the processors are those of before
		if err := unix.Setpriority(unix.PRIO_PROCESS, id, lowestPriority); err != nil {
			return err
		}
	}
	return nil
}
