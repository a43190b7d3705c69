// SPDX-License-Identifier: Apache-2.0

// Package transport makes authenticated connections between the processes of
// a job and moves frames over them.
//
// A process has one [Port], a listener on which it offers protocols ("store",
// "coll", …). A peer calls [Dial] with an address, a protocol and the job's
// [Token]; both sides prove that they know the token, and each gets a [Conn].
// A Conn carries frames: a kind, a length, and bytes that go from the writer's
// slices into the reader's with no copy between when they are large. [Pipe]
// makes the two ends of a Conn inside one process.
//
// # Addresses
//
// "host:port" is TCP. "unix:@name" is a Linux abstract socket, which leaves
// nothing in the file system, and "unix:/path" a socket file (where there are
// no abstract sockets: in a directory of its own that Close removes, and a
// kill leaves behind). [Listen] on "unix:" chooses a fresh one. Only unix
// connections carry descriptors ([Conn.SendFD]).
//
// Peers need an address that they can reach, which is seldom the one that was
// listened on: [ChooseInterface] finds it from the route to the master, or from
// COHORT_INTERFACE (a name, an address or a network), and never asks what the
// host's name resolves to. Its [Choice] prints what was chosen and why.
//
// # Handshake
//
// The first byte of a connection is one that neither HTTP nor TLS begins
// with. All of it has fixed size; H is HMAC-SHA256 under the token over a label
// of the message, the protocol and the nonces so far:
//
//	client → server   magic, version, protocol, client nonce, H(hello)      80 bytes
//	server → client   server nonce, H(challenge)                            64 bytes
//	client → server   H(proof)                                              32 bytes
//	server → client   verdict, H(verdict)                                   33 bytes
//
// The labels differ by direction, so nothing that one side said can be sent
// back to it. A stranger gets no byte: a hello that does not verify is closed
// without an answer, and so is one that this process has heard before. (A
// recorded hello that is repeated to another process of the job gets a
// challenge, 64 bytes that say nothing to who does not know the token, and
// then nothing more.)
//
// Handshakes have a deadline. Whoever comes is taken in at once and held, without a
// goroutine, until the first words prove the token (package lobby): nobody waits behind
// strangers. As many are held as half of the process's descriptors allow; when one too many
// comes, the source with the most loses its oldest. Such a one is reset, while who has said
// something wrong sees the stream end; so [Dial] tries again where there was no room, and
// soon gives up where its token differs. Who is turned away is counted, and reported
// where [Port.OnRefusal] says, seldom enough that a log is not drowned and in
// words that nobody else has a say in.
//
// The handshake proves who is there when the connection begins. It does not
// hide or protect what follows from someone who controls the network between
// the hosts.
//
// # TLS
//
// That is the work of TLS 1.3, which goes under the handshake where Dial is
// told [WithTLS]; [Encrypt] is the policy that says where, and [Port.RequireTLS] holds
// others to it. A Port tells a
// client hello by its first byte (22), so that one port serves both. The
// token (HKDF-SHA256) gives an Ed25519 key, the job's certificate authority:
// each member makes itself a certificate by it, in memory, and demands one of
// its peer; they end never, and no clock is asked. The client hello offers one
// application protocol, a nonce and an HMAC of it under the token, so that a
// stranger, and who repeats a member's hello, is closed without an answer
// here too. A key exported from the session (RFC 8446, section 7.5) is part of
// every H above, so that no proof can be carried from one session into another.
//
// A frame costs about twice the processor time of a plain one when it is
// large (AES-GCM at both ends), and a connection about 1 ms of it. Descriptors
// do not pass through TLS. Close does not say goodbye in TLS's words; frames
// tell an end from a cut.
//
// # Shared memory
//
// [DialShared] and [AcceptShared] turn a unix connection, once its handshake is
// done, into one whose bytes go through memory that both processes map: a ring
// of 1 MiB in each direction, in a memory file whose size is sealed. A frame is
// two copies and no system call while the other side looks; a round trip of 8
// bytes takes 0.3 µs. The reader and the writer copy at the same time, so that a
// large payload takes little more than one copy. Where the ring is slow, as it is
// between cores that share no cache, payloads of 256 KiB and more are read straight
// from the sender's memory (process_vm_readv, if the system allows it). The socket stays, to wake a
// reader that has been waiting for long, and to tell that the peer has died.
// What the peer says in that memory is checked, and its bytes are copied before
// they are looked at.
//
// # Waiting
//
// A read that finds nothing is parked until the runtime's poller wakes it,
// which costs nothing while it lasts and about 50 µs at its end.
// [Conn.Poll] asks the socket for some microseconds, and then waits in the
// system for some milliseconds, which is what a client does that expects an
// answer at once and has a core for it. Long payloads are read where they belong by calls
// that take the next frame's header along, and the reader is woken when much
// has come, so that a frame costs few calls and fewer wake-ups.
//
// # Caveats
//
// Ownership: who gets a Conn closes it. Slices passed to WriteFrame may be
// used again when it returns. Concurrency: any number of goroutines may write
// frames, which never mix; one goroutine at a time may read. Close may be
// called at any time and ends both with an error. The zero Conn and Port are
// of no use. Errors that concern a connection are an [*Error]. A peer whose
// machine or network goes away without a word is found by TCP keep-alive after
// 25 s; who needs to know sooner sets deadlines and sends something.
package transport

import (
	"errors"
	"fmt"

	"github.com/cohort-ml/cohort/internal/envvar"
)

// Error is a failed operation on a connection or a listener.
type Error struct {
	Op    string // "dial", "listen", "handshake", "read", "write", "send fd", "receive fd", "share memory"
	Proto string // empty where there is none yet
	Addr  string // the peer's address, or the listener's own
	Err   error

	reached, alive bool // of a Dial, see Reached and Alive
}

func (e *Error) Error() string {
	proto := ""
	if e.Proto != "" {
		proto = " (" + e.Proto + ")"
	}
	return fmt.Sprintf("transport: %s %s%s: %v", e.Op, e.Addr, proto, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// Causes that callers tell apart with errors.Is. A peer that closed the
// connection between two frames is io.EOF, inside one io.ErrUnexpectedEOF.
var (
	// ErrFrameTooLarge is a frame longer than its reader allows.
	ErrFrameTooLarge = errors.New("frame is longer than the reader allows")
	// ErrRejected is a peer that ended the handshake: nearly always its token differs.
	ErrRejected = errors.New("the peer ended the handshake: its job token differs from this process's, or it is no port of a Cohort job")
	// ErrNoRoom is a peer that has reset the connection before it answered: strangers
	// come faster than it can tell them from members, or its process has just ended.
	ErrNoRoom = errors.New("the peer reset the connection within the handshake: it has no room for the strangers that come to it, or has just ended")
	// ErrImpostor is a peer that answered the handshake without knowing the token.
	ErrImpostor = errors.New("the peer could not prove that it knows the job's token")
	// ErrNoProtocol is a peer that is a member but does not offer the protocol.
	ErrNoProtocol = errors.New("the peer does not offer this protocol")
	// ErrNeedsTLS is a peer that takes the protocol through TLS only.
	ErrNeedsTLS = errors.New("the peer takes this protocol through TLS only: " + string(envvar.Encrypt) + " must be the same for all members of the job")
	// ErrNoToken is a missing token.
	ErrNoToken = errors.New("no job token: set the same one for all members of the job with\n\texport COHORT_TOKEN=$(openssl rand -hex 32)\n(or the output of `cohort token`, or COHORT_TOKEN_FILE naming a file that holds it)")
)
