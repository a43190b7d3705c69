# SPDX-License-Identifier: Apache-2.0
"""Calls methods of Cohort's RPC agents.

    import cohort, numpy as np
    with cohort.connect("127.0.0.1:4000") as agent:     # proves COHORT_TOKEN
        total = agent.call("math.Add", {"X": np.ones(2, np.float32), "Y": np.ones(2, np.float32)})

An agent is a process that serves methods by package rpc of Cohort; its Addr()
is what to connect to. Arguments and results are Go values as Python has them:

    Go                     Python
    struct                 dict of all its fields
    map, slice, string     dict, list, str
    []byte                 bytes
    slice of numbers       array.array, or list; arrives as array.array
    time.Time              datetime.datetime that knows its zone
    time.Duration          int of nanoseconds, or datetime.timedelta; arrives as int
    *tensor.Tensor         numpy.ndarray or torch.Tensor; arrives as connect's `tensors` says

Nothing that arrives is executed: there are no pickles.
"""

from .client import Agent, Stream, connect
from .errors import RPCError

__all__ = ["Agent", "RPCError", "Stream", "connect"]
