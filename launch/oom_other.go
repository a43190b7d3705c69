// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package launch

// memoryWatch would know whether the system has killed processes because memory
// ran out; only Linux does so, and says it.
type memoryWatch struct{}

func watchMemory() *memoryWatch { return &memoryWatch{} }

func (*memoryWatch) close() {}

func (*memoryWatch) explain([]Failure) {}
