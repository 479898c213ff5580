"""A small random MiniCPM-o-4.5, saved as the published one is, and a reference that computes it whole.

transformers does not carry the model, so the reference is put together from its Whisper encoder layers and
its Qwen3, in the way that OpenBMB's modeling_minicpmo.py and processing_minicpmo.py put theirs together. It
keeps the audio and computes everything anew; nothing of it streams.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from transformers import (
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
    WhisperConfig,
    WhisperFeatureExtractor,
)
from transformers.models.whisper.modeling_whisper import WhisperEncoder

from .tiny import TEMPLATE

RATE = 16_000
THETA = 50_000.0  # of the rotary positions; no default
POOL = 5
MARKERS = (
    "<unit>", "</unit>", "<|audio_start|>", "<|audio_end|>", "<|listen|>", "<|speak|>", "<|tts_bos|>",
    "<|tts_eos|>", "<|tts_pad|>", "<|chunk_eos|>", "<|chunk_tts_eos|>", "<|turn_eos|>",
)  # fmt: skip


class Projector(nn.Module):
    """Two linear layers with a ReLU between."""

    def __init__(self, size: int, out: int) -> None:
        super().__init__()
        self.linear1 = nn.Linear(size, out)
        self.linear2 = nn.Linear(out, out)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear2(F.relu(self.linear1(x)))
        return out


class Reference:
    """The model's parts by transformers, with random weights."""

    def __init__(self, *, positions: int = 250, seed: int = 0, vocab: int = 400) -> None:
        torch.manual_seed(seed)
        self.audio = WhisperConfig(
            d_model=32, encoder_layers=2, encoder_attention_heads=4, encoder_ffn_dim=128, num_mel_bins=80,
            max_source_positions=positions, is_encoder_decoder=False, init_std=0.2,
        )  # fmt: skip
        self.text = Qwen3Config(
            vocab_size=vocab, hidden_size=48, intermediate_size=96, num_hidden_layers=2, head_dim=16,
            num_attention_heads=4, num_key_value_heads=2, initializer_range=0.3, tie_word_embeddings=False,
            rope_parameters={"rope_type": "default", "rope_theta": THETA},
        )  # fmt: skip
        self.audio._attn_implementation = "eager"
        self.apm = WhisperEncoder(self.audio).eval()
        nn.init.normal_(self.apm.embed_positions.weight, std=0.5)
        self.projector = Projector(32, 48).eval()
        self.llm = Qwen3ForCausalLM(self.text).eval()
        self.llm.model.rotary_emb.forward = self._exact_angles

    @torch.inference_mode()
    def embed(self, audio: NDArray[np.float32]) -> Tensor:
        """Embeddings [10 n, hidden] of the n whole seconds of a call's audio."""
        seconds = [self._convolve(features, number) for number, features in enumerate(mel(audio))]
        together = (self.audio.max_source_positions - 52 + 49) // 50  # that fit one cache; then it is empty
        parts = [
            self._encode(torch.cat(seconds[start : start + together], dim=1))
            for start in range(0, len(seconds), together)
        ]
        projected = self.projector(torch.cat(parts, dim=1))
        return F.avg_pool1d(projected.transpose(1, 2), POOL).transpose(1, 2)[0]

    def _convolve(self, features: Tensor, number: int) -> Tensor:
        x = F.gelu(self.apm.conv2(F.gelu(self.apm.conv1(features))))
        return x[:, :, (1 if number else 0) : -1].transpose(1, 2)

    def _encode(self, x: Tensor) -> Tensor:
        second = torch.arange(x.shape[1]) // 50
        hidden = torch.zeros(len(second), len(second)).masked_fill(second[None] > second[:, None], -torch.inf)
        x = x + self.apm.embed_positions.weight[: x.shape[1]]
        for layer in self.apm.layers:
            x = layer(x, attention_mask=hidden[None, None])
        out: Tensor = self.apm.layer_norm(x)
        return out

    def _exact_angles(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin of angles in float64: those in float32 drift away with position."""
        size = self.text.head_dim
        inverse = THETA ** -(torch.arange(0, size, 2, dtype=torch.float64) / size)
        angles = (position_ids[..., None].double() * inverse).repeat(1, 1, 2)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)

    @torch.inference_mode()
    def logits(self, inputs_TE: Tensor) -> Tensor:
        """Logits [T, vocab] of a whole sequence."""
        found: Tensor = self.llm(inputs_embeds=inputs_TE[None]).logits[0]
        return found

    @torch.inference_mode()
    def talk_more(self) -> None:
        """Let the markers of listening and of a reply's end be said as often as words."""
        names = make_tokenizer().get_vocab()
        for name, louder in (("<|listen|>", 2), ("<|chunk_eos|>", -3), ("<|turn_eos|>", -3)):
            self.llm.lm_head.weight[names[name]] *= louder

    def tensors(self) -> dict[str, Tensor]:
        """By their published names, with some of the parts that text out does not need."""
        named = {f"apm.{name}": x for name, x in self.apm.state_dict().items()}
        named |= {f"audio_projection_layer.{name}": x for name, x in self.projector.state_dict().items()}
        named |= {f"llm.{name}": x for name, x in self.llm.state_dict().items()}
        others = ("vpm.post_layernorm.weight", "resampler.query", "tts.emb_text.weight")
        named |= {name: torch.ones(3) for name in others}
        return {name: x.contiguous().clone() for name, x in named.items()}

    def save(self, folder: Path) -> Path:
        """As a checkpoint of two shards, with its tokenizer and the processor's file."""
        folder.mkdir(parents=True, exist_ok=True)
        tokenizer = save_tokenizer(folder)
        assert len(tokenizer) <= self.text.vocab_size
        save_shards(folder, self.tensors())
        (folder / "config.json").write_text(json.dumps(self._config()))
        (folder / "preprocessor_config.json").write_text(
            json.dumps({"feature_extractor_type": "MiniCPMAAudioProcessor", "audio_pool_step": POOL})
        )
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": tokenizer.eos_token_id}))
        return folder

    def _config(self) -> dict[str, object]:
        text: tuple[str, ...] = (
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
        )
        text += ("num_key_value_heads", "head_dim", "rms_norm_eps", "tie_word_embeddings", "hidden_act")
        audio = ("d_model", "encoder_layers", "encoder_attention_heads", "encoder_ffn_dim", "num_mel_bins")
        return {
            "architectures": ["MiniCPMO"],
            "auto_map": {"AutoConfig": "configuration_minicpmo.MiniCPMOConfig"},
            "model_type": "minicpmo",
            "version": "4.5",
            "rope_theta": THETA,
            "audio_pool_step": POOL,
            "audio_chunk_length": 1.0,
            "audio_config": {
                "model_type": "whisper",
                "max_source_positions": self.audio.max_source_positions,
                **{name: getattr(self.audio, name) for name in audio},
            },
            "vision_config": {"model_type": "siglip_vision_model", "hidden_size": 8},
            "tts_config": {"model_type": "minicpmtts", "hidden_size": 8},
            **{name: getattr(self.text, name) for name in text},
        }


def save_shards(folder: Path, tensors: dict[str, Tensor]) -> None:
    """In two files, with the index."""
    names = sorted(tensors)
    shards = {f"model-0000{n + 1}-of-00002.safetensors": names[n::2] for n in range(2)}
    for file, held in shards.items():
        save_file({name: tensors[name] for name in held}, folder / file, metadata={"format": "pt"})
    index = {"weight_map": {name: file for file, held in shards.items() for name in held}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def make_tokenizer() -> Tokenizer:
    """Bytes and the model's markers."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["system user assistant"], trainer)
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in MARKERS])
    return tokenizer


def save_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """Its config names a class that only the model's own code has."""
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=make_tokenizer(), bos_token="<|im_start|>", eos_token="<|im_end|>"
    )
    wrapped.chat_template = TEMPLATE
    wrapped.save_pretrained(folder)
    file = folder / "tokenizer_config.json"
    config = json.loads(file.read_text())
    config |= {
        "tokenizer_class": "MiniCPMOTokenizerFast",
        "auto_map": {"AutoTokenizer": [None, "tokenization_minicpmo_fast.MiniCPMOTokenizerFast"]},
    }
    file.write_text(json.dumps(config))
    return wrapped


def mel(audio: NDArray[np.float32]) -> list[Tensor]:
    """Features [1, 80, 102 or 104] of each whole second, from up to 30 s of audio computed anew each time."""
    audio = np.concatenate((np.zeros(560, np.float32), audio))
    buffer = np.zeros(0, np.float32)
    given, dropped = 0, 0
    out: list[Tensor] = []
    while len(audio) - given >= (size := RATE if given else 16_480):
        buffer = np.concatenate((buffer, audio[given : given + size]))
        given += size
        if len(buffer) >= 30 * RATE:
            buffer, dropped = buffer[10 * RATE :], dropped + 1000
        first = 100 * len(out)
        whole = _whole(buffer)
        out.append(whole[:, :, max(0, first - 2) - dropped if first else 0 : first + 102 - dropped])
    return out


def _whole(buffer: NDArray[np.float32]) -> Tensor:
    extractor = WhisperFeatureExtractor(feature_size=80)
    if len(buffer) >= 5 * RATE:
        heard = extractor(buffer, sampling_rate=RATE, return_tensors="pt", padding="do_not_pad")
        found: Tensor = heard.input_features
        return found
    spectrum = torch.stft(
        torch.from_numpy(buffer), 400, 160, window=torch.hann_window(400), return_complex=True
    )[:, :-1]
    power = torch.from_numpy(extractor.mel_filters).float().T @ spectrum.abs() ** 2
    return ((power.clamp(min=1e-10).log10() + 4) / 4)[None]


def speech(seconds: float, seed: int) -> NDArray[np.float32]:
    """Noise that swells and fades, with silences: levels differ from second to second."""
    random = np.random.default_rng(seed)
    size, turns = round(seconds * RATE), int(seconds) + 2
    loud = np.interp(np.arange(size), RATE * np.arange(turns), 10 ** random.uniform(-5, 0, turns))
    return (0.3 * loud * random.standard_normal(size)).astype(np.float32)
