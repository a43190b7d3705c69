// SPDX-License-Identifier: Apache-2.0

package dlopen

import (
	"os"
	"os/signal"
	"slices"
	"syscall"
	"testing"
)

// TestHandlersComeBack: a handler that was replaced is there again, and a signal that it
// takes arrives in Go.
func TestHandlersComeBack(t *testing.T) {
	got := make(chan os.Signal, 1)
	signal.Notify(got, syscall.SIGUSR2)
	defer signal.Stop(got)
	h := SaveHandlers()
	ignore := action{1} // SIG_IGN, as a library might set it
	if err := sigaction(int(syscall.SIGUSR2), &ignore, nil); err != nil {
		t.Fatal(err)
	}
	changed, err := h.Restore()
	if err != nil || !slices.Equal(changed, []syscall.Signal{syscall.SIGUSR2}) {
		t.Fatalf("%v were put back (%v), want %v", changed, err, syscall.SIGUSR2)
	}
	if err := syscall.Kill(os.Getpid(), syscall.SIGUSR2); err != nil {
		t.Fatal(err)
	}
	<-got
	if changed, err := h.Restore(); err != nil || len(changed) > 0 {
		t.Errorf("the second time %v were put back (%v)", changed, err)
	}
}
