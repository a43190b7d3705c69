// SPDX-License-Identifier: Apache-2.0

// Package proof says whether a checkpoint continues a run as the run itself went on.
//
// # Mental model
//
// After a run has saved the checkpoint of step k, it does step k+1 anyway. A [Proof] is what it
// notes of that step: the samples, the learning rates, the loss, and for each tensor a [Digest]
// of the gradient, of the weights and of the optimizer's state. Whoever loads the checkpoint,
// does the same step and compares ([Compare]) learns whether anything was lost between memory
// and disk, and the name of it. A proof also has digests of the state before the step, so that
// a tensor that came back wrong is told from those that only follow from it.
//
// # Digests
//
// A [Digest] has a checksum, the norm, and a few sums of all elements with random signs. Each of
// them is a sum over the elements in which an element's share depends on its value and on its
// place in the whole tensor alone. So a rank digests the boxes that it holds, the ranks add
// up numbers instead of sending tensors, and the result is the same for any mesh. Equal
// checksums mean equal bits. Where bits may differ, because another mesh adds up in another
// order, the norms and the signed sums say how far two tensors are apart: the difference of
// two signed sums is about as large as the norm of the difference of the tensors.
//
// # Files
//
//	digest.go, sums.go   digests of tensors
//	batch.go             checksums of samples
//	proof.go             the Proof, and proof.json
//	compare.go           what differs between two proofs, and how to say it
//
// # Caveats
//
// Nothing here communicates or touches a disk. A digest is no signature: it finds mistakes, and
// who forges a tensor on purpose can give it the digest of another.
package proof
