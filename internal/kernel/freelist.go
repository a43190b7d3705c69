// SPDX-License-Identifier: Apache-2.0

package kernel

import "sync"

// idleList keeps the state of calls that have ended for the next ones, closures
// and slices with it, so that a call allocates nothing. The zero value is empty.
type idleList[T any] struct {
	mu   sync.Mutex
	idle []*T
}

// maxIdle bounds what a list keeps.
const maxIdle = 64

// get returns something idle, nil if there is nothing.
func (l *idleList[T]) get() *T {
	l.mu.Lock()
	defer l.mu.Unlock()
	last := len(l.idle) - 1
	if last < 0 {
		return nil
	}
	x := l.idle[last]
	l.idle = l.idle[:last]
	return x
}

func (l *idleList[T]) put(x *T) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.idle) < maxIdle {
		l.idle = append(l.idle, x)
	}
}
