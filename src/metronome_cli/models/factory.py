"""From a profile to the model it names.

Knows:   the kinds of models, and that each is imported only when asked for.
Ignores: what they need; a model says itself what is missing or does not fit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..profile import Profile

if TYPE_CHECKING:
    from .cascade import Cascade
    from .minicpm_o import MiniCpmO
    from .moshi import Moshi
    from .null import NullModel
    from .qwen_omni import QwenOmni
    from .text import TextModel


def build(profile: Profile) -> NullModel | TextModel | Cascade | QwenOmni | MiniCpmO | Moshi:
    """The model of `profile`, loaded and ready to tick.

    AssetError when weights are missing; ProfileError when one session does not fit the pool.
    """
    if profile.model.kind == "null":
        from .null import NullModel

        return NullModel(profile)
    if profile.model.kind == "text":
        from .text import TextModel

        return TextModel(profile)
    if profile.model.kind in ("qwen2.5-omni", "qwen3-omni"):
        from .qwen_omni import QwenOmni

        return QwenOmni(profile)
    if profile.model.kind == "minicpm-o":
        from .minicpm_o import MiniCpmO

        return MiniCpmO(profile)
    if profile.model.kind == "moshi":
        from .moshi import Moshi

        return Moshi(profile)
    from .cascade import Cascade

    return Cascade(profile)
