# SPDX-License-Identifier: Apache-2.0
"""Proves, and demands a proof, that both sides know the job's token."""

import hashlib
import hmac
import os

from .errors import RPCError

_MAGIC = b"\xc0HORT\r\n\x01"
_PROTOCOL = b"rpc".ljust(8, b"\0")
_VERDICTS = {2: "there is no RPC at this address", 3: "the agent takes RPC through TLS only: see the README"}


def load_token(token=None):
    """Returns the 32 bytes of the token: of the argument, COHORT_TOKEN, or the file that COHORT_TOKEN_FILE names."""
    if token is None:
        token = os.environ.get("COHORT_TOKEN")
    if token is None and os.environ.get("COHORT_TOKEN_FILE"):
        with open(os.environ["COHORT_TOKEN_FILE"]) as f:
            token = f.read().strip()
    if not token:
        raise ValueError("no job token: pass token=, or set COHORT_TOKEN to the one that the agents have")
    if len(token) != 64:
        raise ValueError("a job token has 64 hexadecimal digits, this one has %d characters" % len(token))
    try:
        return bytes.fromhex(token)
    except ValueError:
        raise ValueError("a job token has 64 hexadecimal digits, this one has others") from None


def handshake(conn, token, session=bytes(32)):
    """Runs the client's side. session is the exported key of a TLS session."""
    mine, theirs = os.urandom(32), bytes(32)

    def proof(label, extra=0):
        text = b"".join((b"cohort transport \x01", label, b"\0", bytes((extra,)), session, _PROTOCOL, mine, theirs))
        return hmac.new(token, text, hashlib.sha256).digest()

    conn.send(_MAGIC + _PROTOCOL + mine + proof(b"hello"))
    try:
        challenge = conn.read(64)
    except EOFError:
        raise RPCError("unreachable", "the peer ended the handshake: its job token differs, or it is no agent of a Cohort job", peer=conn.peer) from None
    theirs = challenge[:32]
    if not hmac.compare_digest(challenge[32:], proof(b"challenge")):
        raise RPCError("unreachable", "the peer could not prove that it knows the job's token", peer=conn.peer)
    conn.send(proof(b"proof"))
    try:
        answer = conn.read(33)
    except EOFError:
        raise RPCError("unreachable", "the peer ended the handshake", peer=conn.peer) from None
    if not hmac.compare_digest(answer[1:], proof(b"verdict", answer[0])):
        raise RPCError("unreachable", "the peer's verdict is forged", peer=conn.peer)
    if answer[0] != 1:
        raise RPCError("unreachable", _VERDICTS.get(answer[0], "the peer refuses, for reason %d" % answer[0]), peer=conn.peer)
