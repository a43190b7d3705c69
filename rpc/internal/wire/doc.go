// SPDX-License-Identifier: Apache-2.0

// Package wire has the messages that agents exchange, as bytes. docs/rpc-wire.md
// describes the format.
//
// A message is one frame of package transport. Its payload is the length of the head,
// the head in CBOR, and the values of the tensors. An [Outgoing] is a message that is
// being made or written: tensors are written from their own memory. A [Received] is a
// message that has been read: tensors are read into memory of their own.
//
// The package knows nothing of agents. The encoders and decoders of references, which
// take part in the protocol, find the other side in Outgoing.To and Received.From.
package wire
