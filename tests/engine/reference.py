"""Plain decoders to compare with: float64, unfused weights, one session, nothing shared with the engine.

`masked_logits` runs the whole history at once under the window's mask. `rerotated_logits` keeps raw keys in a
cache that really evicts and turns them by their place in the cache, as StreamingLLM does, one token a step.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from transformers import PreTrainedModel


class Reference:
    """The weights of a transformers model, in float64."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.w: dict[str, Tensor] = {name: tensor.double() for name, tensor in model.state_dict().items()}
        config = model.config
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.layers, self.eps = int(config.num_hidden_layers), float(config.rms_norm_eps)
        self.size = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.top = int(getattr(config, "num_experts_per_tok", 0))
        exponent = torch.arange(0, self.size, 2, dtype=torch.float64) / self.size
        self.inverse: Tensor = torch.pow(float(config.rope_parameters["rope_theta"]), -exponent)

    def masked_logits(
        self, ids: list[int], see: Callable[[int, int], bool], stand: Callable[[int, int], int]
    ) -> Tensor:
        """Logits [n, vocab]. `see(t, p)`: whether t attends to p; `stand(t, p)`: where t stands then."""
        n = len(ids)
        seen = torch.tensor([[see(t, p) for p in range(n)] for t in range(n)])
        stands = torch.tensor([[stand(t, p) for p in range(n)] for t in range(n)])
        x = self.w["model.embed_tokens.weight"][ids]
        for number in range(self.layers):
            query, key, value = self.project(x, number)
            key = self.turn(key, torch.arange(n))
            mixed = []
            for t in range(n):
                turned = self.turn(query[t].expand(n, -1, -1), stands[t])
                scores = (turned * key).sum(-1) * self.size**-0.5
                weights = scores.masked_fill(~seen[t][:, None], float("-inf")).softmax(0)
                mixed.append((weights[..., None] * value).sum(0).flatten())
            x = self.finish(x, torch.stack(mixed), number)
        return self.head(x)

    def rerotated_logits(self, ids: list[int], window: int, sinks: int) -> Tensor:
        """Logits [n, vocab] of a rolling cache whose keys are turned by their place in it, anew each step."""
        kept: list[list[tuple[Tensor, Tensor]]] = [[] for _ in range(self.layers)]
        out = []
        for token in ids:
            x = self.w["model.embed_tokens.weight"][[token]]
            for number, cache in enumerate(kept):
                query, key, value = self.project(x, number)
                cache.append((key[0], value[0]))
                if len(cache) > sinks + window:
                    del cache[sinks]
                keys = self.turn(torch.stack([k for k, _ in cache]), torch.arange(len(cache)))
                turned = self.turn(query, torch.tensor([len(cache) - 1]))
                weights = ((turned * keys).sum(-1) * self.size**-0.5).softmax(0)
                mixed = (weights[..., None] * torch.stack([v for _, v in cache])).sum(0).flatten()
                x = self.finish(x, mixed[None], number)
            out.append(self.head(x)[0])
        return torch.stack(out)

    def project(self, x: Tensor, number: int) -> tuple[Tensor, Tensor, Tensor]:
        prefix = f"model.layers.{number}."
        normed = self.norm(x, prefix + "input_layernorm.weight")
        heads = []
        for name in "qkv":
            y = normed @ self.w[f"{prefix}self_attn.{name}_proj.weight"].T
            y = y + self.w.get(f"{prefix}self_attn.{name}_proj.bias", torch.zeros(()))
            y = y.unflatten(-1, (-1, self.size))
            if (norm := f"{prefix}self_attn.{name}_norm.weight") in self.w:
                y = self.norm(y, norm)
            heads.append(y if name == "q" else y.repeat_interleave(self.heads // self.kv_heads, dim=1))
        return heads[0], heads[1], heads[2]

    def finish(self, x: Tensor, mixed: Tensor, number: int) -> Tensor:
        prefix = f"model.layers.{number}."
        x = x + mixed @ self.w[prefix + "self_attn.o_proj.weight"].T
        normed = self.norm(x, prefix + "post_attention_layernorm.weight")
        if prefix + "mlp.gate.weight" in self.w:
            return x + torch.stack([self.mixture(token, prefix + "mlp.") for token in normed])
        gate = normed @ self.w[prefix + "mlp.gate_proj.weight"].T
        up = normed @ self.w[prefix + "mlp.up_proj.weight"].T
        return x + (gate * gate.sigmoid() * up) @ self.w[prefix + "mlp.down_proj.weight"].T

    def mixture(self, token: Tensor, prefix: str) -> Tensor:
        """What one token's experts answer, by their shares of the chosen."""
        shares, experts = (self.w[prefix + "gate.weight"] @ token).softmax(0).topk(self.top)
        answers = []
        for expert in experts.tolist():
            gate, up = (self.w[prefix + "experts.gate_up_proj"][expert] @ token).chunk(2)
            answers.append(self.w[prefix + "experts.down_proj"][expert] @ (gate * gate.sigmoid() * up))
        return (shares / shares.sum()) @ torch.stack(answers)

    def head(self, x: Tensor) -> Tensor:
        name = "lm_head.weight" if "lm_head.weight" in self.w else "model.embed_tokens.weight"
        return self.norm(x, "model.norm.weight") @ self.w[name].T

    def norm(self, x: Tensor, name: str) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt() * self.w[name]

    def turn(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotate pairs (i, i + D/2) as complex numbers."""
        first, second = x.chunk(2, dim=-1)
        turned = torch.complex(first, second) * torch.exp(1j * positions[:, None, None] * self.inverse)
        return torch.cat((turned.real, turned.imag), dim=-1)
