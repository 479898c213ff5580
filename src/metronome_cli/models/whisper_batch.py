"""Whisper over many buffers at once: one encoder pass at a short context, one greedy loop with a KV cache.

Knows:   openai-whisper's modules and tokens, log-mel frames, attention, batches.
Ignores: calls and their history, pauses, and whether what was decoded is to be believed.

Shapes:  B rows, N samples, M mel bands, F mel frames (10 ms), A audio positions (20 ms), P new token places,
         T all token places, H heads, K alignment heads of all layers, D head size, E width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
import whisper
from numpy.typing import NDArray
from torch import Tensor
from whisper.audio import HOP_LENGTH, N_FFT, SAMPLE_RATE, mel_filters
from whisper.model import MultiHeadAttention, TextDecoder, Whisper
from whisper.tokenizer import Tokenizer, get_tokenizer

from ..engine.linear import Linear
from ..errors import AssetError

# Whether to give a row up: its number, its new tokens, and Decoded.attention so far.
GiveUp = Callable[[int, Sequence[int], NDArray[np.float32]], bool]
_GLANCE = 6  # asked every so many tokens


@dataclass(frozen=True, slots=True)
class Decoded:
    """What the greedy loop made of one buffer."""

    tokens: list[int]  # text only, without the prefix and the end token
    logprob: float  # mean over what was decoded, the end token included
    no_speech: float  # probability of "no speech" where the transcript starts, 0..1
    attention: NDArray[np.float32]  # [K, T, A]: where each token of prefix, text and end was heard


class WhisperBatch:
    """A Whisper checkpoint (openai-whisper's .pt, or a folder that holds one) that hears a batch of buffers.

    Audio is zero-padded to `context_s` instead of Whisper's 30 s, which makes the encoder several times
    cheaper. A row's result does not depend on the other rows, but for rounding inside torch's kernels.
    `products`: what its matrices are multiplied in (engine/linear.py).
    """

    def __init__(self, checkpoint: Path, context_s: float, products: torch.dtype | None = None) -> None:
        self._model = load_whisper(checkpoint)
        _lay_out(self._model, products)
        self._samples = round(context_s * SAMPLE_RATE)
        self._tokenizer: Tokenizer = get_tokenizer(
            self._model.is_multilingual, num_languages=self._model.num_languages, language="en"
        )
        # Every round multiplies by the whole table, so a copy is laid out for that.
        self._vocabulary = Linear(self._model.decoder.token_embedding.weight.detach(), products=products)
        self._never = torch.tensor(_never_text(self._tokenizer, self._model.dims.n_vocab))

    def text(self, tokens: Sequence[int]) -> str:
        """Tokens as text; a leading space starts a new word."""
        return str(self._tokenizer.decode(list(tokens)))

    @torch.inference_mode()
    def decode(
        self,
        audio: Sequence[NDArray[np.float32]],
        prefixes: Sequence[Sequence[int]],
        cap: int,
        give_up: GiveUp | None = None,
    ) -> list[Decoded]:
        """Transcribe buffers (mono, 16 kHz, at most the context long), each on from its prefix of tokens.

        A row leaves the batch at its end token, after `cap` new tokens, or when it is given up.
        """
        start = self._tokenizer.sot_sequence_including_notimestamps
        prompts = [[*start, *prefix] for prefix in prefixes]
        places = min(max(map(len, prompts)) + cap, self._model.dims.n_text_ctx)
        loop = _Loop(self._model, self._encode(self._mel(audio)), places)
        tokens_BP = torch.nn.utils.rnn.pad_sequence([torch.tensor(prompt) for prompt in prompts], True)
        states_BPE, heard_BKPA = loop.append(tokens_BP, torch.arange(tokens_BP.shape[1]).expand_as(tokens_BP))

        rows, last = torch.arange(len(prompts)), torch.tensor([len(prompt) for prompt in prompts]) - 1
        no_speech_B = self._vocabulary(states_BPE[:, start.index(self._tokenizer.sot)]).softmax(-1)
        drafts = [
            _Draft(
                self._tokenizer.eot,
                min(cap, places - len(prompt)),
                float(no_speech[self._tokenizer.no_speech]),
                list(heard_KPA[:, len(start) - 1 : len(prompt) - 1].unbind(1)),
                partial(give_up, row) if give_up else None,
            )
            for row, (prompt, no_speech, heard_KPA) in enumerate(
                zip(prompts, no_speech_B, heard_BKPA, strict=True)
            )
        ]
        self._extend(drafts, loop, last + 1, states_BPE[rows, last], heard_BKPA[rows, :, last])
        return [draft.finished() for draft in drafts]

    def _extend(
        self, drafts: list[_Draft], loop: _Loop, place_B: Tensor, state_BE: Tensor, heard_BKA: Tensor
    ) -> None:
        """Greedy decoding, one token a round for all rows that have not ended."""
        while True:
            logits_BV = self._vocabulary(state_BE)
            logits_BV[:, self._never] = -torch.inf
            best = logits_BV.log_softmax(-1).max(-1)
            going = [
                row
                for row, draft in enumerate(drafts)
                if draft.take(int(best.indices[row]), float(best.values[row]), heard_BKA[row])
            ]
            if not going:
                return
            if len(going) < len(drafts):
                drafts = [drafts[row] for row in going]
                loop.keep(going)
            states_BPE, heard_BKPA = loop.append(best.indices[going, None], place_B[going, None])
            state_BE, heard_BKA, place_B = states_BPE[:, 0], heard_BKPA[:, :, 0], place_B[going] + 1

    def _mel(self, audio: Sequence[NDArray[np.float32]]) -> Tensor:
        """Log-mel frames [B, M, F]; each row has its own ceiling, so that a loud row does not dim another."""
        audio_BN = torch.zeros(len(audio), self._samples)
        for row, samples in zip(audio_BN, audio, strict=True):
            row[: len(samples)] = torch.from_numpy(samples)
        spectrum = torch.stft(
            audio_BN, N_FFT, HOP_LENGTH, window=torch.hann_window(N_FFT), return_complex=True
        )
        mel_BMF = mel_filters("cpu", self._model.dims.n_mels) @ spectrum[..., :-1].abs().square()
        mel_BMF = mel_BMF.clamp(min=1e-10).log10()
        return (torch.maximum(mel_BMF, mel_BMF.amax((1, 2), keepdim=True) - 8.0) + 4.0) / 4.0

    def _encode(self, mel_BMF: Tensor) -> Tensor:
        """Whisper's encoder over as many positions as there is context: [B, A, E]."""
        encoder = self._model.encoder
        x_BEA = F.gelu(encoder.conv2(F.gelu(encoder.conv1(mel_BMF))))
        x_BAE = x_BEA.transpose(1, 2) + encoder.positional_embedding[: x_BEA.shape[-1]]
        for block in encoder.blocks:
            x_BAE = block(x_BAE)
        states_BAE: Tensor = encoder.ln_post(x_BAE)
        return states_BAE


@dataclass(slots=True)
class _Draft:
    """One row's transcript while it grows."""

    end: int
    cap: int
    no_speech: float
    heard: list[Tensor]  # [K, A] for each token so far, prefix first
    give_up: Callable[[Sequence[int], NDArray[np.float32]], bool] | None
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def take(self, token: int, logprob: float, heard_KA: Tensor) -> bool:
        """Add the next token; False when it was the last."""
        self.logprobs.append(logprob)
        self.heard.append(heard_KA)
        if token == self.end:
            return False
        self.tokens.append(token)
        return len(self.tokens) < self.cap and not self._given_up()

    def _given_up(self) -> bool:
        if self.give_up is None or len(self.tokens) % _GLANCE:
            return False
        return self.give_up(self.tokens, self._attention())

    def finished(self) -> Decoded:
        mean = sum(self.logprobs) / len(self.logprobs)
        return Decoded(self.tokens, mean, self.no_speech, self._attention())

    def _attention(self) -> NDArray[np.float32]:
        attention_KTA: NDArray[np.float32] = torch.stack(self.heard, 1).numpy()
        return attention_KTA


class _Loop:
    """Whisper's text decoder with its caches. Rows of different lengths stand side by side: every token
    comes with its place, and sees its own row's places up to there."""

    def __init__(self, model: Whisper, audio_BAE: Tensor, places: int) -> None:
        self._decoder: TextDecoder = model.decoder
        self._alignment = [
            [head for at, head in model.alignment_heads.indices().T.tolist() if at == layer]
            for layer in range(model.dims.n_text_layer)
        ]
        # Contiguous: every round multiplies by them, and would copy them first.
        self._heard = [
            (
                _heads(cross, cross.key(audio_BAE)).contiguous(),
                _heads(cross, cross.value(audio_BAE)).contiguous(),
            )
            for cross in (block.cross_attn for block in self._decoder.blocks)
        ]
        rows, heads, _, size = self._heard[0][0].shape
        self._said = [
            (torch.zeros(rows, heads, places, size), torch.zeros(rows, heads, places, size))
            for _ in self._decoder.blocks
        ]

    def append(self, tokens_BP: Tensor, places_BP: Tensor) -> tuple[Tensor, Tensor]:
        """Final states [B, P, E], and the alignment heads' attention to the audio [B, K, P, A]."""
        x_BPE = self._decoder.token_embedding(tokens_BP) + self._decoder.positional_embedding[places_BP]
        heard_BKPA = []
        for layer, block in enumerate(self._decoder.blocks):
            x_BPE = x_BPE + self._attend_said(layer, block.attn, block.attn_ln(x_BPE), places_BP)
            told_BPE, weights_BHPA = self._attend_heard(layer, block.cross_attn, block.cross_attn_ln(x_BPE))
            heard_BKPA.append(weights_BHPA[:, self._alignment[layer]])
            x_BPE = x_BPE + told_BPE
            x_BPE = x_BPE + block.mlp(block.mlp_ln(x_BPE))
        return self._decoder.ln(x_BPE), torch.cat(heard_BKPA, 1)

    def keep(self, rows: list[int]) -> None:
        """Let all other rows go."""
        self._said = [(keys[rows], values[rows]) for keys, values in self._said]
        self._heard = [(keys[rows], values[rows]) for keys, values in self._heard]

    def _attend_said(
        self, layer: int, attention: MultiHeadAttention, x_BPE: Tensor, places_BP: Tensor
    ) -> Tensor:
        keys_BHTD, values_BHTD = self._said[layer]
        rows_B1 = torch.arange(len(x_BPE))[:, None]
        # A shorter prompt leaves padding behind its end: unseen, and overwritten when the row gets there.
        keys_BHTD[rows_B1, :, places_BP] = _heads(attention, attention.key(x_BPE)).transpose(1, 2)
        values_BHTD[rows_B1, :, places_BP] = _heads(attention, attention.value(x_BPE)).transpose(1, 2)
        seen_BPT = torch.arange(keys_BHTD.shape[2]) <= places_BP[:, :, None]
        query_BHPD = _heads(attention, attention.query(x_BPE))
        told_BHPD = F.scaled_dot_product_attention(query_BHPD, keys_BHTD, values_BHTD, seen_BPT[:, None])
        told_BPE: Tensor = attention.out(told_BHPD.transpose(1, 2).flatten(2))
        return told_BPE

    def _attend_heard(
        self, layer: int, attention: MultiHeadAttention, x_BPE: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Cross-attention with its weights: written out, as the fused kernel does not tell them."""
        keys_BHAD, values_BHAD = self._heard[layer]
        query_BHPD = _heads(attention, attention.query(x_BPE))
        scores_BHPA = query_BHPD @ keys_BHAD.transpose(-1, -2) * query_BHPD.shape[-1] ** -0.5
        weights_BHPA = scores_BHPA.softmax(-1)
        told_BPE: Tensor = attention.out((weights_BHPA @ values_BHAD).transpose(1, 2).flatten(2))
        return told_BPE, weights_BHPA


class _LaidOut(torch.nn.Module):
    """A linear module of Whisper's, with its weight laid out once."""

    def __init__(self, module: torch.nn.Linear, products: torch.dtype | None) -> None:
        super().__init__()
        bias = None if module.bias is None else module.bias.detach()
        self._linear = Linear(module.weight.detach(), bias, products)

    def forward(self, x: Tensor) -> Tensor:
        return self._linear(x)


def _lay_out(module: torch.nn.Module, products: torch.dtype | None) -> None:
    """Put a `_LaidOut` in the place of every linear module inside."""
    for name, child in list(module.named_children()):
        if isinstance(child, torch.nn.Linear):
            setattr(module, name, _LaidOut(child, products))
        else:
            _lay_out(child, products)


def _heads(attention: MultiHeadAttention, x_BPE: Tensor) -> Tensor:
    """[B, H, P, D]."""
    return x_BPE.view(*x_BPE.shape[:2], attention.n_head, -1).transpose(1, 2)


def _never_text(tokenizer: Tokenizer, vocabulary: int) -> list[int]:
    """Tokens that are no spoken words: sound descriptions, speaker tags, timestamps and other controls."""
    return sorted({*tokenizer.non_speech_tokens, *range(tokenizer.eot + 1, vocabulary)})


def load_whisper(checkpoint: Path) -> Whisper:
    """The model on the CPU. AssetError when there is none, or not one that openai-whisper can read."""
    found = sorted(checkpoint.glob("*.pt")) if checkpoint.is_dir() else [checkpoint]
    if len(found) != 1 or not found[0].is_file():
        raise AssetError(f"{checkpoint}: give a Whisper .pt file, or a folder that holds exactly one")
    try:
        # An absolute path: load_model would fetch a model of that name for a bare "tiny.en".
        return whisper.load_model(str(found[0].resolve()), device="cpu").eval()
    except Exception as error:  # a damaged file fails in a dozen ways, all with one cure
        raise AssetError(
            f"{found[0]}: not a Whisper checkpoint ({type(error).__name__}); fetch it again"
        ) from error
