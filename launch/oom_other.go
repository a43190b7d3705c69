// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package launch

// oomWatch does nothing here: only Linux kills processes because memory ran out, and says
// so.
type oomWatch struct{}

func watchOOM() *oomWatch { return &oomWatch{} }

func (*oomWatch) close() {}

func (*oomWatch) explain([]Failure) {}
