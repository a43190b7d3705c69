// SPDX-License-Identifier: Apache-2.0

package fault

import "fmt"

// WireError is the cause of a [RankError] about a peer of a group with PyTorch members
// that sent what it must not: something that the wire does not know, another call than
// this rank's, or one of another size.
type WireError struct {
	// Sent is what the peer sent: "NOTIFY_RECV_READY of 16 bytes in broadcast with tag 5".
	Sent string
	// Why is what is wrong with it: "this rank's call with tag 5 is all_reduce".
	Why string
	// Peer is the peer's host and address.
	Peer string
	// Other says that the peer is in another collective, or in one of another size.
	Other bool
	// Bytes is how many bytes the peer has for its part of the message, and Want how
	// many this rank has; both are 0 where they do not differ.
	Bytes, Want int64
	// Call is this rank's own call, "all_reduce sum of 7 float32"; only with Other,
	// and "" where no call was under way.
	Call string
}

func (e *WireError) Error() string {
	who := "it"
	if e.Peer != "" {
		who = fmt.Sprintf("it (%s)", e.Peer)
	}
	if e.Why == "" {
		return fmt.Sprintf("%s sent %s", who, e.Sent)
	}
	text := fmt.Sprintf("%s sent %s, but %s", who, e.Sent, e.Why)
	if e.Call != "" {
		text += fmt.Sprintf(" (this rank's call: %s)", e.Call)
	}
	return text
}
