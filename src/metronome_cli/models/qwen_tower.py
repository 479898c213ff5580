"""The audio towers of Qwen2.5-Omni and Qwen3-Omni: features of clips into embeddings, many in one batch.

Knows:   transformers' modules, whose weights these are; chunks of the convolutions; who attends to whom.
Ignores: samples and calls (qwen_ears.py), where weights come from.

A clip is cut into chunks of 2 n_window frames, which the convolutions and Qwen2.5's attention never leave;
Qwen3's attends over windows of n_window_infer frames. Each clip is heard as if it were alone. Qwen3 pads the
last chunk of a clip that has several, and its convolutions see what becomes of that; a clip of less than a
chunk is not padded.

Shape letters: B clips, C chunks, R rows of attention, P positions, N positions of all, M mel bins, T frames,
E hidden size, H heads, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniAudioEncoder
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeAudioEncoder

from ..engine.checkpoint import Part

_CONVOLVED = 64  # chunks at once: Qwen3's first convolution makes 3 MB of each


class Tower(Protocol):
    """What an audio tower does to features."""

    module: PreTrainedModel
    chunk: int  # frames

    def positions(self, frames: int) -> int:
        """Positions that a clip of so many frames becomes."""
        ...

    def __call__(self, features_BMT: Tensor, frames: Sequence[int]) -> list[Tensor]:
        """Embeddings [P, hidden] of each clip, the first `frames` of whose features count; the rest are 0."""
        ...


class Qwen25Tower:
    """Two convolutions, attention within each chunk, mean of pairs. 25 positions a second."""

    def __init__(self, config: PreTrainedConfig) -> None:
        self.module: PreTrainedModel = _hollow(Qwen2_5OmniAudioEncoder, config)
        self.chunk = 2 * int(config.n_window)

    def positions(self, frames: int) -> int:
        return self._convolved(frames) // 2

    def __call__(self, features_BMT: Tensor, frames: Sequence[int]) -> list[Tensor]:
        cut = [_parts(count, self.chunk) for count in frames]
        chunks = [size for clip in cut for size in clip]
        lengths = [self._convolved(size) for size in chunks]
        x_CPE = self._convolve(_chunks(features_BMT, cut, self.chunk), chunks)
        x_NE = _attend(self.module, _valid(x_CPE, lengths), lengths)
        pairs, counts = self._pairs(frames)
        at_P = torch.tensor(pairs, dtype=torch.long, device=x_NE.device)
        module: Any = self.module
        pooled_PE = (x_NE[at_P] + x_NE[at_P + 1]) / 2
        return list(module.proj(module.ln_post(pooled_PE)).split(counts))

    @staticmethod
    def _convolved(frames: int) -> int:
        return (frames + 1) // 2

    def _pairs(self, frames: Sequence[int]) -> tuple[list[int], list[int]]:
        """Where pairs of positions begin, and how many each clip has; an odd position at its end is left."""
        starts: list[int] = []
        at = 0
        for count in frames:
            starts += range(at, at + self._convolved(count) - 1, 2)
            at += self._convolved(count)
        return starts, [self.positions(count) for count in frames]

    def _convolve(self, chunks_CMT: Tensor, sizes: Sequence[int]) -> Tensor:
        module: Any = self.module
        x_CET = F.gelu(module.conv1(chunks_CMT.to(module.conv1.weight.dtype)))
        if min(sizes) < x_CET.shape[-1]:
            x_CET = x_CET * _mask(sizes, x_CET.shape[-1], x_CET.device).unsqueeze(1)
        return _placed(module, F.gelu(module.conv2(x_CET)).transpose(1, 2))


class Qwen3Tower:
    """Three convolutions over time and frequency, attention within windows. 13 positions a second."""

    def __init__(self, config: PreTrainedConfig) -> None:
        self.module: PreTrainedModel = _hollow(Qwen3OmniMoeAudioEncoder, config)
        self.chunk = 2 * int(config.n_window)
        self._window = self.positions(self.chunk) * max(1, int(config.n_window_infer) // self.chunk)

    def positions(self, frames: int) -> int:
        whole, rest = divmod(frames, self.chunk)
        return whole * self._convolved(self.chunk) + self._convolved(rest)

    def __call__(self, features_BMT: Tensor, frames: Sequence[int]) -> list[Tensor]:
        cut = [_parts(count, self.chunk) for count in frames]
        seen = [size if len(clip) == 1 else self.chunk for clip in cut for size in clip]
        x_CPE = self._convolve(_chunks(features_BMT, cut, self.chunk), seen)
        x_NE = _valid(x_CPE, [self._convolved(size) for clip in cut for size in clip])
        counts = [self.positions(count) for count in frames]
        windows = [size for count in counts for size in _parts(count, self._window)]
        module: Any = self.module
        x_NE = module.ln_post(_attend(self.module, x_NE, windows))
        return list(module.proj2(module.act(module.proj1(x_NE))).split(counts))

    @staticmethod
    def _convolved(frames: int) -> int:
        for _ in range(3):
            frames = (frames + 1) // 2
        return frames

    def _convolve(self, chunks_CMT: Tensor, seen: list[int]) -> Tensor:
        """`seen`: how many frames of each chunk the convolutions are to see; beyond them all is 0."""
        module: Any = self.module
        done = []
        for at in range(0, len(seen), _CONVOLVED):
            x = chunks_CMT[at : at + _CONVOLVED].unsqueeze(1).to(module.conv2d1.weight.dtype)
            sizes = seen[at : at + _CONVOLVED]
            for convolution in (module.conv2d1, module.conv2d2, module.conv2d3):
                x, sizes = F.gelu(convolution(x)), [(size + 1) // 2 for size in sizes]
                if min(sizes) < x.shape[-1]:
                    x = x * _mask(sizes, x.shape[-1], x.device)[:, None, None]
            done.append(module.conv_out(x.permute(0, 3, 1, 2).flatten(2)))
        return _placed(module, torch.cat(done))


def fill(tower: Tower, part: Part, device: torch.device) -> None:
    """Read the weights of a tower that has none yet. AssetError naming a key that is missing or misshaped."""
    for name, parameter in list(tower.module.named_parameters()):
        holder, _, own = name.rpartition(".")
        weight = nn.Parameter(part.take(name, tuple(parameter.shape)), requires_grad=False)
        setattr(tower.module.get_submodule(holder), own, weight)
    _finish(tower, device)


def fill_randomly(tower: Tower, dtype: torch.dtype, device: torch.device, seed: int = 0) -> None:
    """Weights that keep hidden states near 1: what a tower costs does not depend on what it hears."""
    module: Any = tower.module
    module.to_empty(device=device).to(dtype)
    random = torch.Generator(device).manual_seed(seed)
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(False)
        if parameter.dim() == 1:
            parameter.fill_(1.0 if name.endswith("norm.weight") or "ln_post.weight" in name else 0.0)
        else:
            parameter.normal_(0, parameter[0].numel() ** -0.5, generator=random)
    _finish(tower, device)


def _hollow(kind: type[PreTrainedModel], config: PreTrainedConfig) -> PreTrainedModel:
    """A module without memory for its weights."""
    with torch.device("meta"):
        module: PreTrainedModel = kind(config).eval()
    return module


def _finish(tower: Tower, device: torch.device) -> None:
    """Positions are computed, not read."""
    module: Any = tower.module
    old = module.positional_embedding
    module.positional_embedding = type(old)(old.length, old.channels).to(device)


def _parts(count: int, most: int) -> list[int]:
    """`count` in parts of `most`, the last of which may be smaller."""
    return [min(most, count - at) for at in range(0, count, most)]


def _chunks(features_BMT: Tensor, cut: Sequence[Sequence[int]], chunk: int) -> Tensor:
    """The chunks of all clips, [C, M, T], T a whole chunk."""
    clips, mels, frames = features_BMT.shape
    most = -(-frames // chunk)
    padded = F.pad(features_BMT, (0, most * chunk - frames))
    chunks_CMT = padded.view(clips, mels, most, chunk).transpose(1, 2).reshape(clips * most, mels, chunk)
    rows = [clip * most + place for clip, sizes in enumerate(cut) for place in range(len(sizes))]
    return chunks_CMT if len(rows) == clips * most else chunks_CMT[rows]


def _placed(module: Any, x_CPE: Tensor) -> Tensor:
    """Each chunk counts its positions from 0."""
    places_PE: Tensor = module.positional_embedding.positional_embedding[: x_CPE.shape[1]]
    return x_CPE + places_PE.to(x_CPE.dtype)


def _mask(lengths: Sequence[int], most: int, device: torch.device) -> Tensor:
    """Which places of each row are taken, [R, most]."""
    return (torch.tensor(lengths).unsqueeze(1) > torch.arange(most)).to(device)


def _valid(x_CPE: Tensor, lengths: Sequence[int]) -> Tensor:
    """The first `lengths` positions of each chunk, one after the other, [N, E]."""
    if min(lengths) == x_CPE.shape[1]:
        return x_CPE.flatten(0, 1)
    return x_CPE[_mask(lengths, x_CPE.shape[1], x_CPE.device)]


def _attend(module: Any, x_NE: Tensor, lengths: list[int]) -> Tensor:
    """The tower's layers over rows of `lengths` positions, none of which sees another. [N, E] again."""
    most, mask_RP = max(lengths), None
    if min(lengths) == most:
        x_RPE = x_NE.view(len(lengths), most, -1)
    else:
        x_RPE = pad_sequence(list(x_NE.split(lengths)), batch_first=True)
        mask_RP = _mask(lengths, most, x_NE.device)
    for layer in module.layers:
        x_RPE = _layer(layer, x_RPE, mask_RP)
    return x_RPE.flatten(0, 1) if mask_RP is None else x_RPE[mask_RP]


def _layer(layer: Any, x_RPE: Tensor, mask_RP: Tensor | None) -> Tensor:
    attention = layer.self_attn
    normed_RPE: Tensor = layer.self_attn_layer_norm(x_RPE)
    query, key, value = (
        projection(normed_RPE).unflatten(-1, (attention.num_heads, -1)).transpose(1, 2)
        for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    seen = None if mask_RP is None else mask_RP[:, None, None]
    mixed_RHPD = F.scaled_dot_product_attention(query, key, value, attn_mask=seen)
    x_RPE = x_RPE + attention.out_proj(mixed_RHPD.transpose(1, 2).flatten(2))
    inner_RPI: Tensor = layer.activation_fn(layer.fc1(layer.final_layer_norm(x_RPE)))
    x_RPE = x_RPE + layer.fc2(inner_RPI)
    if x_RPE.dtype == torch.float16:
        most = torch.finfo(x_RPE.dtype).max - 1000
        return x_RPE.clamp(-most, most)  # as transformers does
    return x_RPE
