// SPDX-License-Identifier: Apache-2.0

package flight

import (
	"strconv"
	"strings"
	"sync"
	"testing"
)

// TestSharedGlance: goroutines that ask for the stacks at the same time share a look, and
// each finds itself in it, for the look began after it asked.
func TestSharedGlance(t *testing.T) {
	var g glance
	var asking sync.WaitGroup
	for range 20 {
		for range 20 {
			asking.Go(func() {
				head := "goroutine " + strconv.Itoa(number()) + " "
				for _, text := range g.take() {
					if strings.HasPrefix(text, head) {
						return
					}
				}
				t.Errorf("%sis not among the stacks", head)
			})
		}
	}
	asking.Wait()
	if g.next != nil {
		t.Error("a look is left that nobody waits for")
	}
}
