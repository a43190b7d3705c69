# SPDX-License-Identifier: Apache-2.0
"""What goes wrong with a call."""


class RPCError(Exception):
    """A call that failed, or a connection.

    kind is one of "application" (the method failed), "panic", "unknown method",
    "types", "too large", "version", "unknown peer", "timeout", "canceled",
    "unreachable", "connection lost", "closed", "busy", "released", "protocol".
    stack leads to where it happened in the agent, code names an error that both
    sides know, and value is what that error carries.
    """

    def __init__(self, kind, message, method="", peer="", stack="", code="", value=None):
        self.kind, self.message, self.method, self.peer = kind, message, method, peer
        self.stack, self.code, self.value = stack, code, value
        where = " ".join(x for x in (method, "on " + peer if peer else "") if x)
        super().__init__(": ".join(x for x in ("rpc " + where if where else "rpc", kind, message) if x))
