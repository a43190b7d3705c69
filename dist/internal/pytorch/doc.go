// SPDX-License-Identifier: Apache-2.0

// Package pytorch makes this process a rank of a PyTorch job: it is the [backend.Job] of the
// backend "gloo".
//
// The other ranks call init_process_group("gloo"). They do not know of Cohort, so everything
// follows what their PyTorch does: where ranks meet, under which keys of the store, how groups
// are named and counted, and what Gloo does not have. Releases differ in all of that. The
// package therefore finds out which PyTorch the others run before it publishes anything.
// Package gloo moves the data.
//
// # Files
//
//   - job.go: [Start], the meeting of all ranks, and how a communicator is opened.
//   - place.go: who this process is, as PyTorch's init_method says it.
//   - release.go, find.go: what a release of PyTorch has, and which one the others run.
//   - store.go: the store that all share, its keys, and the barriers in it.
//   - members.go: which ranks run Cohort; two processes that claim one rank.
//   - others.go: ranks of a PyTorch that cannot be in one group with the first.
//   - address.go: where this rank listens, and TLS.
//   - groups.go, naming.go: new_group, and how releases name groups.
//   - rules.go: what a group with PyTorch members does not have, or does in its own way.
//   - wrapper.go: ranks that compare their calls (TORCH_DISTRIBUTED_DEBUG=DETAIL).
//   - waiting.go: what a rank writes when it waits long for others.
//
// # Caveats
//
// PyTorch's protocols have no authentication: who reaches the ports is in.
package pytorch
