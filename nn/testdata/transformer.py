# SPDX-License-Identifier: Apache-2.0
"""Makes transformer.safetensors: PyTorch's attention and transformer modules with the first values that a seed
gives, their results and the gradients of inputs and parameters. Run with PyTorch 2 and the safetensors package."""
import torch
from safetensors.torch import save_file
from torch import nn

WIDTH, HEADS, HIDDEN = 12, 3, 20
out = {}


def case(name, build, call, *shapes):
    """A module made after manual_seed(7); call gets it and operands of the shapes."""
    torch.manual_seed(7)
    m = build()
    for key, p in m.state_dict().items():
        out[f"{name}/first/{key}"] = p.clone()
    # Norms and biases are moved off their first values, which hide mistakes.
    g = torch.Generator().manual_seed(8)
    with torch.no_grad():
        for key, p in m.named_parameters():
            p += 0.2 * torch.randn(p.shape, generator=g)
            out[f"{name}/param/{key}"] = p.detach().clone()
    xs = [torch.randn(s, generator=g).requires_grad_() for s in shapes]
    y = call(m, *xs)
    weights = torch.randn(y.shape, generator=g)
    (y * weights).sum().backward()
    for i, x in enumerate(xs):
        out[f"{name}/in/{i}"], out[f"{name}/ingrad/{i}"] = x.detach(), x.grad
    for key, p in m.named_parameters():
        out[f"{name}/grad/{key}"] = p.grad
    out[f"{name}/out"], out[f"{name}/weights"] = y.detach(), weights


def hidden(time):
    """PyTorch's bool masks are true for what is left out."""
    return torch.ones(time, time, dtype=torch.bool).triu(1)


SEEN = torch.tensor([[1, 1, 0, 1], [0, 1, 1, 1]], dtype=torch.bool)  # of the memory, by batch
attention = lambda: nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
options = dict(dim_feedforward=HIDDEN, dropout=0, batch_first=True)
encoder = lambda **o: nn.TransformerEncoderLayer(WIDTH, HEADS, **options, **o)
decoder = lambda **o: nn.TransformerDecoderLayer(WIDTH, HEADS, **options, **o)

case("self", attention, lambda m, x: m(x, x, x, attn_mask=hidden(5), need_weights=False)[0], (2, 5, WIDTH))
case("cross", attention, lambda m, q, kv: m(q, kv, kv, key_padding_mask=~SEEN, need_weights=False)[0], (2, 3, WIDTH), (2, 4, WIDTH))
case("encoder layer", encoder, lambda m, x: m(x), (2, 5, WIDTH))
case("encoder layer masked", lambda: encoder(norm_first=True, activation="gelu", layer_norm_eps=1e-3),
     lambda m, x: m(x, src_key_padding_mask=~SEEN), (2, 4, WIDTH))
case("encoder", lambda: nn.TransformerEncoder(encoder(norm_first=True), 2, norm=nn.LayerNorm(WIDTH), enable_nested_tensor=False),
     lambda m, x: m(x, mask=hidden(5)), (2, 5, WIDTH))
case("decoder layer", decoder, lambda m, x, y: m(x, y, tgt_mask=hidden(5), memory_key_padding_mask=~SEEN), (2, 5, WIDTH), (2, 4, WIDTH))
case("decoder", lambda: nn.TransformerDecoder(decoder(norm_first=True), 2), lambda m, x, y: m(x, y, tgt_mask=hidden(3)),
     (2, 3, WIDTH), (2, 4, WIDTH))
save_file({k: v.contiguous() for k, v in out.items()}, "transformer.safetensors", {"torch": torch.__version__})
