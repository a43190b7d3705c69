// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"errors"
	"io"
)

// Programs that are meant for one job may come to the other kind's port: Cohort's to
// PyTorch's store, and PyTorch's to a Port. Each side is told what it has come to.

// HelloStart is what a client of a [Port] begins with.
const HelloStart = "\xc0HORT"

// ErrPyTorch is a peer that serves PyTorch's store, and has said so.
var ErrPyTorch = errors.New(`PyTorch's store is served there: dist.WithBackend("gloo") joins PyTorch's ranks, store.DialPyTorch is its client, and cohort store --wire cohort serves one for Cohort's clients`)

// errPyTorch is a client of PyTorch's store.
var errPyTorch = errors.New(`PyTorch's store was looked for: dist.WithBackend("gloo"), on all Go ranks, joins PyTorch's`)

// notPort is what PyTorch's store says in place of a challenge.
const notPort = "Cohort: this is PyTorch's store, which has no tokens to prove.\r\n"

const _ = -uint(len(notPort) ^ challengeSize) // so they are of one length

// SayPyTorch answers a client of a [Port] that has come to PyTorch's store: its Dial
// returns [ErrPyTorch]. Nothing of what the client says has been read yet.
func SayPyTorch(client io.ReadWriter) error {
	var hello [helloSize]byte
	if _, err := io.ReadFull(client, hello[:]); err != nil { // else the answer might be lost at the close
		return err
	}
	_, err := io.WriteString(client, notPort)
	return err
}

// pyTorchGreetings are the first bytes of PyTorch's clients, of 2.2 and later and of 1.13.
var pyTorchGreetings = []string{"\x00\xce\xf7\x85\x3c", "\x03\x05\x00\x00\x00"}
