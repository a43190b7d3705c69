// SPDX-License-Identifier: Apache-2.0

// Package transport makes authenticated connections between the processes of a job, and moves
// frames over them.
//
// A process has one [Port]: a listener on which it offers protocols ("store", "coll", …). A
// peer calls [Dial] with an address, a protocol and the job's [Token]. Both sides prove that
// they know the token, and each gets a [Conn]. A Conn carries frames: a kind, a length, and
// bytes. Large payloads go from the writer's slices into the reader's without a copy between.
// [Pipe] makes the two ends of a Conn inside one process.
//
// # Files
//
//	addresses        address.go, interface.go (which network interface peers can reach)
//	listening        port.go, refusal.go (reports of refused connections), greeting.go (the first bytes of a stranger)
//	                 heldport*.go (a port that is kept for another process)
//	connecting       dial.go
//	handshake        handshake.go, token.go, nonces.go (repeated hellos), tls.go, pytorch.go (peers of the other kind)
//	frames           conn.go, reader.go, socket_*.go (system calls), fd_unix.go (descriptors)
//	waiting          poll*.go (spinning before a read sleeps)
//	TCP's state      tcp_*.go (timeouts, unanswered data), sockopt_unix.go
//	shared memory    shared*.go (how two processes agree on it), memorylink_linux.go (the connection), ring_linux.go (its rings),
//	                 directcopy_linux.go (large payloads, read from the sender's memory)
//	tests            pipe.go, injector.go (connections that stall or break)
//
// # Addresses
//
// "host:port" is TCP. "unix:@name" is a Linux abstract socket, which leaves nothing in the file
// system. "unix:/path" is a socket file; where there are no abstract sockets, it is in a
// directory of its own, which Close removes and a killed process leaves behind. [Listen] on
// "unix:" chooses a fresh address. Only unix connections carry descriptors ([Conn.SendFD]).
//
// Peers need an address that they can reach, which is seldom the address of the listener.
// [ChooseInterface] finds it by the route to the master, or by COHORT_INTERFACE (a name, an
// address or a network). It never asks what the host's name resolves to. Its [Choice] prints
// what was chosen and why.
//
// # Handshake
//
// The first byte of a connection is one with which neither HTTP nor TLS begins. All messages
// have fixed sizes. H is HMAC-SHA256 under the token, over a label of the message, the protocol
// and the nonces so far:
//
//	client → server   magic, version, protocol, client nonce, H(hello)      80 bytes
//	server → client   server nonce, H(challenge)                            64 bytes
//	client → server   H(proof)                                              32 bytes
//	server → client   verdict, H(verdict)                                   33 bytes
//
// The labels differ by direction, so that no side's message can be sent back to it. A stranger
// gets no byte: a hello that does not verify is closed without an answer, and so is a hello that
// this process has heard before. (A recorded hello that is repeated to another process of the
// job gets a challenge. Its 64 bytes tell nothing to a peer that does not know the token, and
// nothing follows.)
//
// Handshakes have a deadline. The port accepts every connection at once, and holds it without a
// goroutine until its first bytes prove the token (package lobby). So no member waits behind
// strangers. The port holds as many connections as half of the process's descriptors allow; when
// one too many comes, the source with the most loses its oldest. A connection that is dropped
// for want of room is reset; a connection with a wrong hello sees the end of the stream. So
// [Dial] tries again where there was no room, and soon gives up where its token differs. Refused
// connections are counted. [Port.OnRefusal] gets reports of them, few enough to keep a log
// readable, and in words that no stranger chooses.
//
// The handshake proves who the peer is when the connection begins. It does not hide or protect
// what follows from an attacker who controls the network between the hosts.
//
// # TLS
//
// TLS 1.3 does that. It goes under the handshake where Dial has the option [WithTLS]. [Encrypt] is
// the policy that decides where, and [Port.RequireTLS] enforces it. A port recognizes TLS by the
// first byte (22), so that one port serves both. The token gives an Ed25519 key (by HKDF-SHA256):
// the job's certificate authority. Each member makes itself a certificate in memory, and demands
// one of its peer. The certificates never expire, and no clock is read. The client hello offers
// one application protocol, a nonce, and an HMAC of the nonce under the token. So a stranger, or a
// peer that repeats a member's hello, is closed without an answer here too. A key exported from
// the session (RFC 8446, section 7.5) is part of every H above, so that no proof can be carried
// from one session into another.
//
// A large frame costs about twice the processor time of a plain one (AES-GCM at both ends), and a
// connection about 1 ms. Descriptors do not pass through TLS. Close sends no close_notify; frames
// tell the end of a stream from a cut.
//
// # Shared memory
//
// [DialShared] and [AcceptShared] turn a unix connection, after its handshake, into one whose bytes
// go through memory that both processes map: a ring of 1 MiB in each direction, in a memory file of
// sealed size. A frame takes two copies, and no system call while the other side looks. A round
// trip of 8 bytes takes 0.3 µs. Reader and writer copy at the same time, so that a large payload
// takes little more than one copy. Where the ring is slow, as between cores that share no cache,
// the reader copies payloads of 256 KiB and more straight from the sender's memory
// (process_vm_readv, if the system allows it). The socket stays open: it wakes a reader that has
// slept, and its end tells that the peer has died. What the peer writes into the memory is checked,
// and its bytes are copied before they are interpreted.
//
// # Waiting
//
// A read that finds nothing is parked until the runtime's poller wakes it. That costs nothing while
// it lasts, and about 50 µs at its end. [Conn.Poll] instead asks the socket for some microseconds
// and then sleeps in the system for some milliseconds. It suits a client that expects an answer at
// once and has a core for the wait. Long payloads are read straight to their place, by calls that
// also take the next frame's header. The reader is woken when much has come. So a frame costs few
// system calls and fewer wake-ups.
//
// # Caveats
//
// Ownership: the goroutine that gets a Conn closes it. Slices passed to WriteFrame may be used again
// when it returns. Concurrency: any number of goroutines may write frames, which never mix; one
// goroutine at a time may read. Close may be called at any time and ends both with an error. The
// zero Conn and Port cannot be used. Errors about a connection are an [*Error]. TCP keep-alive finds
// a peer whose machine or network has gone silently after 25 s; a caller that needs to know sooner
// sets deadlines and sends something.
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

	reached, alive bool // of a Dial: see Reached and Alive
}

func (e *Error) Error() string {
	proto := ""
	if e.Proto != "" {
		proto = " (" + e.Proto + ")"
	}
	return fmt.Sprintf("transport: %s %s%s: %v", e.Op, e.Addr, proto, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// Causes of an [Error], to be found with [errors.Is]. [io.EOF] is the cause when the peer has closed
// the connection between two frames, [io.ErrUnexpectedEOF] inside a frame.
var (
	// ErrFrameTooLarge is the cause when a frame is longer than its reader allows.
	ErrFrameTooLarge = errors.New("frame is longer than the reader allows")
	// ErrRejected is the cause when the peer ended the handshake: nearly always its token differs.
	ErrRejected = errors.New("the peer ended the handshake: its job token differs from this process's, or it is no port of a Cohort job")
	// ErrNoRoom is the cause when the peer reset the connection before it answered: strangers
	// come faster than it can tell them from members, or its process has just ended.
	ErrNoRoom = errors.New("the peer reset the connection within the handshake: it has no room for the strangers that come to it, or has just ended")
	// ErrImpostor is the cause when the peer answered the handshake without knowing the token.
	ErrImpostor = errors.New("the peer could not prove that it knows the job's token")
	// ErrNoProtocol is the cause when the peer is a member but does not offer the protocol.
	ErrNoProtocol = errors.New("the peer does not offer this protocol")
	// ErrNeedsTLS is the cause when the peer takes the protocol through TLS only.
	ErrNeedsTLS = errors.New("the peer takes this protocol through TLS only: " + string(envvar.Encrypt) + " must be the same for all members of the job")
	// ErrNoToken is the cause when this process has no token.
	ErrNoToken = errors.New("no job token: set the same one for all members of the job with\n\texport COHORT_TOKEN=$(openssl rand -hex 32)\n(or the output of `cohort token`, or COHORT_TOKEN_FILE naming a file that holds it)")
)
