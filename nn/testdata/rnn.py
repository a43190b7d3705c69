# SPDX-License-Identifier: Apache-2.0
"""Makes rnn.safetensors: PyTorch's recurrent modules with the first values that a seed gives, their results, the
gradients of inputs, states and parameters, and weights from torch.nn.init. Run with PyTorch 2 and safetensors:
python rnn.py"""
import torch
from safetensors.torch import save_file
from torch import nn

out = {}


def case(name, build, *shapes):
    torch.manual_seed(11)
    m = build()
    g = torch.Generator().manual_seed(12)
    xs = [torch.randn(s, generator=g).requires_grad_() for s in shapes]
    state = xs[1] if len(xs) == 2 else tuple(xs[1:]) or None
    result = m(xs[0], state)
    if isinstance(m, nn.GRUCell):
        results = [result]
    elif isinstance(m, nn.LSTMCell):
        results = list(result)
    else:
        results = [result[0], *(result[1] if isinstance(result[1], tuple) else [result[1]])]
    loss = 0
    for i, y in enumerate(results):
        w = torch.randn(y.shape, generator=g)
        out[f"{name}/out/{i}"], out[f"{name}/weights/{i}"] = y.detach(), w
        loss = loss + (y * w).sum()
    loss.backward()
    for i, x in enumerate(xs):
        out[f"{name}/in/{i}"], out[f"{name}/ingrad/{i}"] = x.detach(), x.grad
    for i, (key, p) in enumerate(m.named_parameters()):
        out[f"{name}/param/{i:02d}/{key}"], out[f"{name}/grad/{key}"] = p.detach(), p.grad


case("lstm", lambda: nn.LSTM(5, 4), (6, 3, 5), (1, 3, 4), (1, 3, 4))
case("lstm deep", lambda: nn.LSTM(5, 4, 2, bidirectional=True, batch_first=True), (3, 6, 5), (4, 3, 4), (4, 3, 4))
case("lstm plain", lambda: nn.LSTM(3, 4, 3, bias=False), (1, 2, 3))
case("gru", lambda: nn.GRU(5, 4), (6, 3, 5), (1, 3, 4))
case("gru deep", lambda: nn.GRU(5, 4, 2, bidirectional=True, batch_first=True), (3, 6, 5), (4, 3, 4))
case("gru plain", lambda: nn.GRU(3, 4, 3, bias=False), (4, 2, 3))
case("lstm cell", lambda: nn.LSTMCell(5, 4), (3, 5), (3, 4), (3, 4))
case("gru cell", lambda: nn.GRUCell(5, 4), (3, 5), (3, 4))

for name, fn in {
    "uniform": lambda w: nn.init.uniform_(w, -0.3, 0.7),
    "xavier": lambda w: nn.init.xavier_uniform_(w, nn.init.calculate_gain("tanh")),
    "kaiming": lambda w: nn.init.kaiming_uniform_(w, 0.2),
    "kaiming fan out": lambda w: nn.init.kaiming_uniform_(w, mode="fan_out", nonlinearity="relu"),
}.items():
    torch.manual_seed(13)
    out[f"init/{name}"] = fn(torch.empty(6, 5, 3, 3))
save_file({k: v.contiguous() for k, v in out.items()}, "rnn.safetensors", metadata={"torch": torch.__version__.split("+")[0]})
