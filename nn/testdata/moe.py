# SPDX-License-Identifier: Apache-2.0
"""Makes moe.safetensors: the sparse blocks of transformers' Mixtral, Qwen2-MoE and DeepSeek-V3, with their results, the
balance loss of Mixtral, and the gradients of inputs and parameters. Run with PyTorch 2, transformers 5 and safetensors."""
import torch
import transformers
from safetensors.torch import save_file
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Config, DeepseekV3MoE
from transformers.models.mixtral.modeling_mixtral import MixtralConfig, MixtralSparseMoeBlock, load_balancing_loss_func
from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeConfig, Qwen2MoeSparseMoeBlock

WIDTH, HIDDEN, SHARED, EXPERTS, ACTIVE = 12, 20, 28, 6, 2
out = {}


def names(key, value):
    """The parameters under the names of nn.MoE, where gate and up are apart."""
    key = key.replace("shared_experts.", "shared_expert.")
    if key.endswith("gate_up_proj"):
        gate, up = value.chunk(2, dim=1)
        return {"experts.gate_proj": gate, "experts.up_proj": up}
    return {key: value}


def case(name, m, balance=0.0):
    g = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for p in m.parameters():
            p.copy_(0.4 * torch.randn(p.shape, generator=g))
        for key, b in m.named_buffers():
            b.copy_(0.3 * torch.randn(b.shape, generator=g))
            out[f"{name}/bias"] = b.clone()
    x = torch.randn((2, 9, WIDTH), generator=g).requires_grad_()
    y = m(x)
    weights = torch.randn(y.shape, generator=g)
    loss = (y * weights).sum()
    if balance:
        logits = m.gate(x)[0]
        aux = load_balancing_loss_func((logits,), EXPERTS, ACTIVE)
        out[f"{name}/balance"] = aux.detach()
        loss = loss + balance * aux
    loss.backward()
    for key, p in m.named_parameters():
        for k, v in names(key, p.detach()).items():
            out[f"{name}/param/{k}"] = v.clone()
        for k, v in names(key, p.grad).items():
            out[f"{name}/grad/{k}"] = v.clone()
    out[f"{name}/in"], out[f"{name}/ingrad"], out[f"{name}/out"], out[f"{name}/weights"] = x.detach(), x.grad, y.detach(), weights


case("mixtral", MixtralSparseMoeBlock(MixtralConfig(hidden_size=WIDTH, intermediate_size=HIDDEN, num_local_experts=EXPERTS,
                                                    num_experts_per_tok=ACTIVE)), balance=3.0)
case("qwen", Qwen2MoeSparseMoeBlock(Qwen2MoeConfig(hidden_size=WIDTH, moe_intermediate_size=HIDDEN, num_experts=EXPERTS,
                                                   shared_expert_intermediate_size=SHARED, num_experts_per_tok=ACTIVE,
                                                   norm_topk_prob=False)))
case("deepseek", DeepseekV3MoE(DeepseekV3Config(hidden_size=WIDTH, moe_intermediate_size=HIDDEN // 2, n_routed_experts=EXPERTS,
                                                num_local_experts=EXPERTS, n_shared_experts=2, num_experts_per_tok=ACTIVE,
                                                n_group=1, topk_group=1, routed_scaling_factor=2.5, norm_topk_prob=True)))
save_file({k: v.contiguous() for k, v in out.items()}, "moe.safetensors",
          {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__})
