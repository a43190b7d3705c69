// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package dlopen

import "syscall"

// Handlers are the handlers of all signals at one moment. Where no library is loaded, they
// are nothing.
type Handlers struct{}

// SaveHandlers returns the handlers as they are.
func SaveHandlers() *Handlers { return &Handlers{} }

// Restore does nothing.
func (h *Handlers) Restore() (changed []syscall.Signal, err error) { return nil, nil }
