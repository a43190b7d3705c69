// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package launch

// oomWatch would know whether the system has killed processes because memory
// ran out; only Linux does so, and says it.
type oomWatch struct{}

func watchOOM() *oomWatch { return &oomWatch{} }

func (*oomWatch) close() {}

func (*oomWatch) explain([]Failure) {}
