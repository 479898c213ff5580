"""From a profile to the model it names.

Knows:   the kinds of models, and that each is imported only when asked for.
Ignores: what they need; a model says itself what is missing or does not fit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..profile import Profile

if TYPE_CHECKING:
    from .cascade import Cascade
    from .null import NullModel
    from .text import TextModel


def build(profile: Profile) -> NullModel | TextModel | Cascade:
    """The model of `profile`, loaded and ready to tick.

    AssetError when weights are missing; ProfileError when one session does not fit the pool.
    """
    if profile.model.kind == "null":
        from .null import NullModel

        return NullModel(profile)
    if profile.model.kind == "text":
        from .text import TextModel

        return TextModel(profile)
    from .cascade import Cascade

    return Cascade(profile)
