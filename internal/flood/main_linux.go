// SPDX-License-Identifier: Apache-2.0

package flood

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"syscall"
)

// Argument makes a test's own program run [Main] in place of its tests.
const Argument = "flood-strangers"

// Order is what [Main] is told.
type Order struct {
	Config
	User int // to become, 0: none
}

// Args returns the arguments of a program that calls Main.
func (o Order) Args() []string {
	text, err := json.Marshal(o)
	if err != nil {
		panic(err)
	}
	return []string{Argument, string(text)}
}

// Main attacks from a process of its own, on the last processor alone, until its standard
// input ends. It writes a line when the attack is in full swing, and one with its [Stats] at the end.
func Main(order string) int {
	var o Order
	err := json.Unmarshal([]byte(order), &o)
	if err == nil {
		err = Pin(runtime.NumCPU() - 1)
	}
	if err == nil && o.User != 0 {
		err = syscall.Setuid(o.User)
	}
	if err == nil {
		var limit syscall.Rlimit
		if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) == nil {
			limit.Cur = limit.Max
			_ = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit)
		}
		stop := make(chan struct{})
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			close(stop)
		}()
		var s Stats
		s, err = Run(o.Config, stop, func() { fmt.Println("full") })
		fmt.Println(s)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "flood:", err)
		return 1
	}
	return 0
}
