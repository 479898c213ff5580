from __future__ import annotations

import errno
import gc
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from metronome_cli.engine import device, weights
from metronome_cli.errors import AssetError, MetronomeError, ProfileError
from metronome_cli.frame import Frame
from metronome_cli.kinds import KINDS
from metronome_cli.models import qwen_omni, room, text
from metronome_cli.models.factory import build, check, find, lacking
from metronome_cli.models.null import NullModel
from metronome_cli.profile import Profile, load_profile, parse_profile

from .tiny import save_tiny_chat
from .tiny_minicpm import Reference


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_ours_can_be_found(kind: str) -> None:
    assert find(kind).__module__ == KINDS[kind].place.partition(":")[0]


def own(kind: str) -> Profile:
    return parse_profile("mine", {"model": {"kind": kind}})


def test_a_model_of_ones_own_is_imported_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a_model_of_mine.py").write_text(
        "from metronome_cli.models.null import NullModel\nclass Mine(NullModel):\n    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    built = build(own("a_model_of_mine:Mine"))
    assert isinstance(built, NullModel)
    assert type(built).__name__ == "Mine"


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("nowhere_at_all:Toy", "No module named 'nowhere_at_all'"),
        ("metronome_cli.nowhere:Toy", "put the folder that holds metronome_cli.nowhere into PYTHONPATH"),
        ("json:Toy", "has no attribute 'Toy'"),
        ("json:JSONDecoder", "lacks open, tick, cancel, close, blocks, policy, usage"),
        ("json:scanner", "this one lacks open"),
    ],
)
def test_what_is_no_model_is_refused_with_the_cure(kind: str, says: str) -> None:
    with pytest.raises(ProfileError, match=re.escape(says)) as caught:
        build(own(kind))
    assert caught.value.field == "model.kind"


def of_type(folder: Path, kind: str, model_type: object) -> Profile:
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    model = {"kind": kind, "thinker": str(folder), "rate": KINDS[kind].rate or 16_000, "mode": "free"}
    beat = {"frame_s": 0.08, "tau": 1}
    return parse_profile("mine", {"model": model, "beat": beat, "window": {"sinks": 4}})


@pytest.mark.parametrize("kind", [name for name, kind in KINDS.items() if kind.weights])
def test_a_checkpoint_of_another_architecture_is_refused_before_it_is_read(tmp_path: Path, kind: str) -> None:
    for model_type in KINDS[kind].types:
        with pytest.raises(AssetError):  # it is read on, and there is no more than this to be read
            check(of_type(tmp_path, kind, model_type))
    with pytest.raises(ProfileError, match=f"'gpt2'; model.kind {re.escape(kind)} reads") as caught:
        check(of_type(tmp_path, kind, "gpt2"))
    assert caught.value.field == "model.thinker"
    assert "would read" not in caught.value.cure
    other = "moshi" if kind != "moshi" else "minicpm-o"
    with pytest.raises(ProfileError, match=f"and {other} would read this one"):
        check(of_type(tmp_path, kind, KINDS[other].types[0]))


@pytest.mark.parametrize(
    ("field", "name", "says"),
    [
        ("thinker", "moby-dick", "the whole of Moby-Dick as one text"),
        ("thinker", "whisper-tiny.en", "use smollm2-135m-instruct"),
        ("ears", "smollm2-135m-instruct", "use whisper-tiny.en"),
    ],
)
def test_an_asset_that_is_no_such_model_is_refused_for_what_it_is(field: str, name: str, says: str) -> None:
    profile = load_profile("laptop", {f"model.{field}": name})
    with pytest.raises(ProfileError, match=re.escape(says)) as refused:
        check(profile)
    assert refused.value.field == f"model.{field}"


@pytest.mark.parametrize("name", ["~nobody-is-called-so/weights", "/" + "a" * 300, "a\0b", ""])
def test_weights_under_a_name_that_no_path_can_have_are_refused(name: str) -> None:
    with pytest.raises(ProfileError, match=r"nothing is there|File name too long") as caught:
        lacking("model.thinker", name)
    assert caught.value.field == "model.thinker"


@pytest.mark.parametrize("look", ["exists", "is_file"])
def test_weights_that_may_not_be_looked_at_are_refused_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, look: str
) -> None:
    def refuse(path: Path) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, look, refuse)
    with pytest.raises(ProfileError, match=r"it cannot be looked at \(Permission denied\); give a folder"):
        lacking("model.thinker", str(tmp_path))


@pytest.mark.parametrize(
    "error", [ImportError("libtorch.so: failed to map"), OSError("libcublas.so.12: no such file")]
)
def test_a_torch_that_cannot_be_loaded_is_told_with_what_to_try(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(_: str) -> None:
        raise error

    monkeypatch.setattr("importlib.import_module", fail)
    with pytest.raises(MetronomeError, match=r"cannot be loaded \(\w+: lib.*\): see whether") as caught:
        find("text")
    assert caught.value.exit_code == 1


def test_the_architectures_of_a_kind_are_those_that_its_reader_takes() -> None:
    for kind, family in qwen_omni._FAMILIES.items():
        assert KINDS[kind].types == (family.whole, family.thinker)
    for kind in ("cascade", "text"):
        assert KINDS[kind].types == weights._FAMILIES


# ---- What is too large ----


@pytest.fixture(scope="module")
def folders(
    tiny_chat: Path, tmp_path_factory: pytest.TempPathFactory, tiny_moshi: Any, qwen25: Any, qwen3: Any
) -> dict[str, Path]:
    """A small checkpoint of each kind that has weights."""
    minicpm = Reference().save(tmp_path_factory.mktemp("minicpm"))
    omni = {"qwen2.5-omni": qwen25.folder, "qwen3-omni": qwen3.folder, "minicpm-o": minicpm}
    return {"text": tiny_chat, "moshi": tiny_moshi[0], **omni}


FRAMES = {"moshi": 0.08, "minicpm-o": 1.0}


def small(kind: str, folder: Path | None, **changes: Any) -> Profile:
    """A set-up of that kind; `changes` map section_field to a value."""
    model = {"kind": kind, "rate": KINDS[kind].rate or 16_000, "header": "Be brief."}
    data: dict[str, dict[str, Any]] = {
        "model": model | ({"thinker": str(folder)} if folder else {}),
        "beat": {"frame_s": FRAMES.get(kind, 0.32), "tau": 1, "prefill_tokens": 40},
        "window": {"window": 64, "sinks": 4},
        "run": {"threads": 1},
    }
    if kind == "moshi":
        data["model"]["mode"] = "free"
    for key, value in changes.items():
        section, _, name = key.partition("_")
        data.setdefault(section, {})[name] = value
    return parse_profile("test", data)


TOO_LARGE = {"pool_blocks": 10_000_000, "pool_block_size": 2**31, "admission_max_sessions": 2**31}


@pytest.mark.parametrize("setting", TOO_LARGE)
@pytest.mark.parametrize("kind", ["text", "moshi", "minicpm-o", "qwen2.5-omni", "qwen3-omni"])
def test_what_no_memory_holds_is_refused_by_name_and_what_is_told_fits(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, kind: str, setting: str
) -> None:
    monkeypatch.setattr(device, "free_memory", lambda: 2**30 // 4)
    asked = small(kind, folders[kind], **{setting: TOO_LARGE[setting]})
    if setting == "admission_max_sessions" and kind not in ("moshi", "minicpm-o"):
        check(asked)  # such a call takes nothing but blocks
        return
    for refuse in (build, check):
        with pytest.raises(ProfileError, match=r"use at most \d+$") as caught:
            refuse(asked)
        assert caught.value.field == setting.replace("_", ".", 1)
    told = int(re.findall(r"\d+", caught.value.cure)[-1])
    monkeypatch.setattr(device, "free_memory", lambda: 2**30 // 4)
    check(small(kind, folders[kind], **{setting: told}))
    with pytest.raises(ProfileError):
        check(small(kind, folders[kind], **{setting: told + 1}))


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A card that the tests have not got."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (40 * 2**30, 80 * 2**30))
    monkeypatch.setattr(device, "find_spec", lambda _: object())
    return monkeypatch


@pytest.mark.parametrize(
    ("head", "changes", "field", "cure"),
    [
        (96, {}, "head_dim", "the kernels take 16, 32, 64, 128, 256"),
        (64, {"beat_prefill_tokens": 8193, "pool_blocks": 1000}, "beat.prefill_tokens", "use at most 8192"),
        (
            64,
            {"window_policy": "recycle", "window_window": 20_000, "pool_blocks": 10_000},
            "window.carry",
            "use at most 8152",
        ),
        (64, {"admission_max_sessions": 65_537}, "admission.max_sessions", "use at most 65536"),
    ],
)
def test_what_a_card_cannot_compute_is_refused_before_anything_is_loaded(
    card: pytest.MonkeyPatch,
    tmp_path: Path,
    head: int,
    changes: dict[str, Any],
    field: str,
    cure: str,
) -> None:
    card.setattr(text, "load_decoder", lambda *_, **__: pytest.fail("its weights were read"))
    folder = save_tiny_chat(tmp_path, head)
    for refuse in (build, check):
        with pytest.raises(ProfileError, match=cure) as caught:
            refuse(small("text", folder, run_device="cuda", **changes))
        assert caught.value.field == field


@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (8, 9)])
def test_fp8_is_refused_on_a_card_that_does_not_know_it(
    card: pytest.MonkeyPatch, tmp_path: Path, capability: tuple[int, int]
) -> None:
    """Triton would say so, while the kernels are compiled: when all weights have been read."""
    card.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    card.setattr(torch.cuda, "get_device_name", lambda _: "A card")
    asked = small("text", save_tiny_chat(tmp_path, 64), run_device="cuda", pool_kv="fp8")
    if capability == (8, 9):
        check(asked)
        return
    with pytest.raises(
        ProfileError, match=r"A card has compute .* 8\.[06], FP8 needs 8\.9 or more"
    ) as caught:
        check(asked)
    assert caught.value.field == "pool.kv"


@pytest.mark.parametrize("blocks", ["free", 10_000])
@pytest.mark.parametrize("policy", ["window", "recycle"])
def test_a_card_with_less_left_than_one_call_needs_is_refused_and_what_is_told_fits(
    card: pytest.MonkeyPatch, tmp_path: Path, policy: str, blocks: Any
) -> None:
    """Whoever called would be turned away for ever: the pool is full before anybody has come."""
    folder = save_tiny_chat(tmp_path, 64)
    asked: dict[str, Any] = {"pool_blocks": blocks, "run_device": "cuda", "window_policy": policy}
    block = 16 * 2 * 2 * 2 * 64 * 4  # tokens, layers, heads, keys and values, numbers of four bytes
    left = device._WORK_BYTES + 2**20 + 30 * block
    card.setattr(torch.cuda, "mem_get_info", lambda _: (left, left))
    with pytest.raises(ProfileError, match=r"session of this window needs \d+ blocks of 16 tok") as caught:
        check(small("text", folder, **asked, window_window=4000))
    assert (caught.value.field, caught.value.value) == ("pool.blocks", blocks)
    asked["pool_blocks"] = "free"
    told = int(re.findall(r"window of at most (\d+) tokens", caught.value.cure)[0])
    check(small("text", folder, **asked, window_window=told))
    with pytest.raises(ProfileError):
        check(small("text", folder, **asked, window_window=told + 1))


@pytest.mark.parametrize("name", ["moshi", "minicpm-o"])
def test_what_a_call_takes_from_the_start_is_counted(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Within a tenth of what the tensors that are there for each call really take."""
    needs: list[device.Need] = []

    def fit(blocks: int, need: device.Need, _: object) -> int:
        needs.append(need)
        return blocks

    monkeypatch.setattr(room, "fit_pool", fit)
    sizes = []
    for calls in (2, 66):
        gc.collect()
        made = build(small(name, folders[name], admission_max_sessions=calls, pool_blocks=20))
        sizes.append(_tensor_bytes())
        del made
    taken = (sizes[1] - sizes[0]) / 64
    assert taken == pytest.approx(needs[0].beside, rel=0.1)


def _tensor_bytes() -> int:
    """Of all that is alive, each piece of memory counted once."""
    alive = [some for some in gc.get_objects() if type(some) is torch.Tensor and not some.is_mkldnn]
    storages = [some.untyped_storage() for some in alive]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory."),
        RuntimeError("DefaultCPUAllocator: can't allocate memory\nframe #0"),
        RuntimeError("Storage size calculation overflowed with sizes=[9]"),
        RuntimeError("CUDA error: out of memory\nframe #0"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
)
def test_memory_that_runs_out_all_the_same_is_told_with_a_cure(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(NullModel, "__init__", fail)
    with pytest.raises(
        ProfileError, match=r"memory ran out \(.*\); use fewer, or less than admission"
    ) as caught:
        build(own("null"))
    assert caught.value.field == "pool.blocks"
    assert "frame #0" not in caught.value.cure


def test_memory_that_runs_out_under_an_error_of_its_own_is_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a capture fails in turn, and hides why."""

    def fail(*_: object) -> None:
        try:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        finally:
            raise RuntimeError("operation failed due to a previous error during capture")

    monkeypatch.setattr(NullModel, "__init__", fail)
    with pytest.raises(ProfileError, match="memory ran out"):
        build(own("null"))


def test_another_error_of_a_model_is_not_taken_for_one_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr(NullModel, "__init__", fail)
    with pytest.raises(RuntimeError, match="shapes do not match"):
        build(own("null"))


@pytest.mark.parametrize("kind", ["null", "text", "qwen3-omni"])
def test_the_longest_frame_and_the_most_tokens_of_one_are_no_loop_to_wait_for(
    folders: dict[str, Path], kind: str
) -> None:
    """Three years of audio and two thousand million tokens a frame: both pass, and a silent tick is over."""
    large = {"beat_prefill_tokens": 2**40, "window_policy": "unbounded", "model_mode": "turn"}
    model = build(small(kind, folders.get(kind), beat_frame_s=1e8, beat_tau=2**31, **large))
    assert model.open(1, 0) is None
    assert len(list(model.tick([Frame(1, np.zeros(160, np.float32))]))) == 1
