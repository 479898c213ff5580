"""From a profile to the model it names.

Knows:   that each kind of model is imported only when asked for, what a model must be able to do, and what no
         model can start with: weights that are not there, a device that is not.
Ignores: what is in a checkpoint; a model says itself what is missing there or does not fit.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path

from ..errors import MetronomeError, ProfileError
from ..frame import TickEngine
from ..kinds import KINDS, is_own, kind_of
from ..profile import Profile
from .assets import ASSETS, HUB_ID, condition, where

# What each field may hold beside a hub id, how it is known at a glance, and what makes an asset one of these.
_CHECKPOINTS: dict[str, tuple[str, Callable[[Path], bool], str]] = {
    "model.thinker": (
        "a folder with a config.json and safetensors",
        lambda path: (path / "config.json").is_file(),
        "gguf_to_folder",
    ),
    "model.ears": (
        "a Whisper .pt file, or a folder that holds one",
        lambda path: path.is_file() or len(list(path.glob("*.pt"))) == 1,
        "ctranslate2_to_whisper",
    ),
}
_METHODS = ("open", "tick", "cancel", "close", "blocks", "policy", "usage")  # of a TickEngine


def build(profile: Profile) -> TickEngine:
    """The model of `profile`, loaded and ready to tick.

    AssetError when weights are missing; ProfileError when one session does not fit the pool, when memory runs
    out, or when a model of one's own cannot be imported or is no TickEngine.
    """
    make = find(profile.model.kind)
    _refuse(profile)
    if is_own(profile.model.kind):  # ours refuse the same as they are made, of what they have read by then
        _ask(make, profile)
    try:
        return make(profile)
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        pool, calls = profile.pool, profile.admission.max_sessions
        said = str(error).partition("\n")[0] or type(error).__name__
        cure = f"memory ran out ({said}); use fewer, or less than admission.max_sessions = {calls}"
        raise ProfileError("pool.blocks", pool.blocks, f"{cure}, or a smaller model") from error


def _is_out_of_memory(error: BaseException) -> bool:
    """torch has a class of its own for a GPU's memory, and for the rest nothing but words. What a capture of
    a graph ends with may come of an error before."""
    words = ("CPUAllocator", "Storage size calculation overflowed", "out of memory", "_STATUS_ALLOC_FAILED")
    is_named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    if is_named or any(word in str(error) for word in words):
        return True
    return error.__context__ is not None and _is_out_of_memory(error.__context__)


def check(profile: Profile) -> None:
    """Refuse what the model of `profile` would refuse when it starts, as far as shows without its weights.

    A model's class may have a static method `check(profile)` that raises ProfileError.
    """
    found = find(profile.model.kind)
    _refuse(profile)
    _ask(found, profile)


def weights_of(profile: Profile) -> dict[str, str]:
    """The fields that name the weights which a profile needs, and what is in them."""
    fields = kind_of(profile.model.kind).weights
    return {f"model.{field}": getattr(profile.model, field) for field in fields}


def lacking(field: str, name: str) -> str | None:
    """What is still to be fetched of the weights that `field` names, as a sentence; None when they are here.

    ProfileError for such as cannot be had.
    """
    path, (wanted, holds, convert) = where(name), _CHECKPOINTS[field]
    if name in ASSETS:
        if ASSETS[name].convert != convert:
            fit = [asset.name for asset in ASSETS.values() if asset.convert == convert]
            cure = f"that asset is another thing ({ASSETS[name].what}); use {' or '.join(fit)}, or {wanted}"
            raise ProfileError(field, name, cure)
        state = condition(ASSETS[name]).state
        return None if state == "have" else f"{name} is {state}; `metronome assets fetch {name}` gets it"
    try:
        if name and path.exists():
            if not holds(path):
                raise ProfileError(field, name, f"no checkpoint lies there; give {wanted}")
            return None
    except OSError as error:
        cure = f"it cannot be looked at ({error.strerror}); give {wanted} that you may read"
        raise ProfileError(field, name, cure) from None
    if HUB_ID.fullmatch(name):
        return f"{name} is no path here; as a hub id it is fetched when the profile starts"
    cure = f"nothing is there; give {wanted}, a hub id (org/name), or a name of `metronome assets list`"
    raise ProfileError(field, name, cure)


def _ask(model: type[TickEngine], profile: Profile) -> None:
    if callable(own := getattr(model, "check", None)):
        own(profile)


def _refuse(profile: Profile) -> None:
    """ProfileError for what no model of ours can start with, told before any of it is imported or read."""
    if not (named := weights_of(profile)):
        return
    for field, name in named.items():
        lacking(field, name)
    _check_type(profile.model.thinker, profile.model.kind)
    from ..engine.device import check_narrow, device_of

    device = device_of(profile.run.device)
    if profile.pool.kv == "fp8":
        check_narrow(device)
    if device.type != "cuda":
        profile.pool.count  # noqa: B018  # refuses what is left of a memory that is not filled up


def _check_type(thinker: str, kind: str) -> None:
    """ProfileError when the checkpoint lies here, and is of another architecture than `kind` reads."""
    if not (types := kind_of(kind).types):
        return
    try:
        found = json.loads((where(thinker) / "config.json").read_text("utf-8")).get("model_type")
    except (OSError, ValueError, RecursionError, AttributeError):
        return  # it is not here yet, or no checkpoint: its reader says which
    if found not in types:
        fit = [name for name, other in KINDS.items() if found in other.types]
        cure = f"its config.json says model_type {found!r}; model.kind {kind} reads {', '.join(types)}"
        cure += f", and {' or '.join(fit)} would read this one" if fit else ""
        raise ProfileError("model.thinker", thinker, cure)


def _unimportable(module: str, error: BaseException) -> str:
    why = f"it cannot be imported ({type(error).__name__}: {error})"
    if isinstance(error, ModuleNotFoundError) and error.name in (module, module.partition(".")[0]):
        return f"{why}; put the folder that holds {module} into PYTHONPATH"
    return f"{why}; mend {module}: `python -c 'import {module}'` shows where"


def _broken(error: BaseException) -> BaseException:
    """Why a module of ours cannot be imported: as a rule torch lacks a library, or the memory for one."""
    if not isinstance(error, ImportError | OSError | MemoryError):
        return error
    said = f"{type(error).__name__}: {error}".partition("\n")[0]
    cure = "see whether `python -c 'import torch'` works here, and install it again or give it more memory"
    return MetronomeError(f"what the model needs cannot be loaded ({said}): {cure}")


def find(kind: str) -> type[TickEngine]:
    """The class of a kind, imported and not built. ProfileError as in `build`; MetronomeError where a module
    of ours cannot be imported."""
    module, _, name = kind_of(kind).place.partition(":")
    try:
        found = getattr(importlib.import_module(module), name, None)
    except (Exception, SystemExit) as error:  # a module of the user's own may do anything
        if not is_own(kind):
            raise _broken(error) from error
        raise ProfileError("model.kind", kind, _unimportable(module, error)) from error
    if found is None:
        raise ProfileError("model.kind", kind, f"module {module} has no attribute {name!r}: give its class")
    if missing := [method for method in _METHODS if not callable(getattr(found, method, None))]:
        cure = f"a model is a class with {', '.join(_METHODS)} (metronome_cli.frame.TickEngine); "
        raise ProfileError("model.kind", kind, cure + f"this one lacks {', '.join(missing)}")
    engine: type[TickEngine] = found
    return engine
