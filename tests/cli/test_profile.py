"""`metronome profile` answers on standard output, as a table or as one JSON document."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import MoshiConfig
from typer.testing import CliRunner, Result

from metronome_cli.cli.checks import check_model
from metronome_cli.cli.main import app
from metronome_cli.cli.room import session_blocks
from metronome_cli.engine.decoder import DecoderConfig
from metronome_cli.engine.device import block_bytes
from metronome_cli.engine.kv_pool import FP8
from metronome_cli.errors import ProfileError
from metronome_cli.kinds import KINDS
from metronome_cli.models import minicpm_o
from metronome_cli.models.factory import build
from metronome_cli.models.minicpm_encoder import cache_bytes
from metronome_cli.models.moshi_config import codec_bytes
from metronome_cli.profile import load_profile, profile_names


def profile(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["profile", *arguments])


def test_the_list_names_every_built_in_profile_and_says_what_it_is_for() -> None:
    shown = profile("list").stdout
    listed = json.loads(profile("list", "--json").stdout)
    assert [row["name"] for row in listed] == profile_names()
    for row in listed:
        assert row["name"] in shown
        assert row["about"].split()[0] in shown


def test_show_gives_every_value_the_defaults_included() -> None:
    shown = profile("show", "laptop").stdout
    rows = dict(re.findall(r"^(\w+\.\w+) +(.*\S)", shown, re.MULTILINE))
    assert rows["beat.frame_s"] == "2.0"
    assert rows["window.sinks"] == '"header"'
    assert rows["server.reaper_s"] == "2.0"
    assert rows["window.carry"] == "not set"
    assert "One session needs at most about 41 blocks; the pool has 336." in shown


def test_show_as_json_is_the_profile_and_its_bound() -> None:
    shown = json.loads(profile("show", "laptop", "--json").stdout)
    assert shown.pop("session_blocks") == 41  # what /capacity shows as reserved for one call
    assert shown.pop("room")["pool_sessions"] == 8
    assert shown.pop("refuses")
    assert shown.pop("unused") == []
    assert shown == load_profile("laptop").model_dump()


@pytest.mark.parametrize("name", profile_names())
def test_show_as_toml_is_a_file_to_begin_with(tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.toml").write_text(profile("show", name, "--toml").stdout)
    assert load_profile(str(tmp_path / f"{name}.toml")) == load_profile(name)


def test_an_unbounded_profile_is_shown_to_have_no_bound(tmp_path: Path) -> None:
    file = tmp_path / "free.toml"
    file.write_text('[window]\npolicy = "unbounded"\n')
    assert "One session has no bound; the pool has 320 blocks." in profile("show", str(file)).stdout
    assert json.loads(profile("show", str(file), "--json").stdout)["session_blocks"] is None


@pytest.mark.parametrize("name", profile_names())
def test_check_passes_every_built_in_profile_where_its_device_is(name: str) -> None:
    result = profile("check", name)
    if load_profile(name).run.device == "cuda" and not torch.cuda.is_available():
        assert isinstance(result.exception, ProfileError)
        assert result.exception.field == "run.device"
        return
    assert result.exit_code == 0
    assert result.stdout.startswith(f"{name}: in order.")


# ---- What calls take of a memory ----

# One layer's key and value of a token: 2 x KV heads x 128 x 2 bytes.
SIZES = {
    "moshi": ("kmhf/hf-moshiko", {"rate": 24_000}, 512),
    "minicpm-o": ("openbmb/MiniCPM-o-4_5", {}, 144),
    "qwen2.5-omni": ("Qwen/Qwen2.5-Omni-7B", {}, 56),
    "qwen3-omni": ("Qwen/Qwen3-Omni-30B-A3B-Instruct", {}, 96),
}


def write(folder: Path, kind: str, thinker: str, fields: Any, **sections: Any) -> Path:
    tables = {"model": {"kind": kind, "thinker": thinker, "dtype": "bfloat16", **fields}, **sections}
    text = "".join(
        f"[{name}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items())
        for name, table in tables.items()
    )
    (folder / "mine.toml").write_text(text)
    return folder / "mine.toml"


@pytest.mark.parametrize("kind", SIZES)
def test_show_knows_a_model_whose_weights_are_not_here(tmp_path: Path, kind: str) -> None:
    thinker, fields, kib = SIZES[kind]
    window: dict[str, object] = {"window": 1024, "sinks": 4}
    pool: dict[str, object] = {"blocks": 1000, "block_size": 16}
    file = write(tmp_path, kind, thinker, fields, window=window, pool=pool, beat={"prefill_tokens": 64})
    room = json.loads(profile("show", str(file), "--memory", "80GiB", "--json").stdout)["room"]
    assert room["kv_bytes_per_token"] == kib * 1024
    blocks = 1 + -(-(1023 + 64) // 16) + 1
    assert (room["session_blocks"], room["session_bytes"]) == (blocks, blocks * 16 * kib * 1024)
    assert room["pool_sessions"] == 1000 // blocks
    assert room["beside_bytes"] == {"moshi": 16_908_288, "minicpm-o": 143_130_624}.get(kind, 0)
    assert room["memory_sessions"] == 80 * 2**30 // (kib * 1024 * 16 * blocks + room["beside_bytes"])
    shown = profile("show", str(file), "--memory", "80GiB").stdout
    assert f"{kib} KiB ({kib * 1024} bytes)" in shown
    assert f"beside the weights: {room['memory_sessions']} sessions" in shown


def test_what_a_call_takes_beside_the_pool_is_what_its_model_says() -> None:
    assert KINDS["moshi"].beside == codec_bytes(MoshiConfig())
    assert KINDS["minicpm-o"].beside == cache_bytes(minicpm_o.PUBLISHED.audio, torch.bfloat16)


@pytest.mark.parametrize("name", profile_names())
def test_the_blocks_of_a_call_are_those_that_its_file_tells(name: str) -> None:
    text = (Path(__file__).parents[2] / "profiles" / f"{name}.toml").read_text()
    told = re.search(r"calls? reserves? .* = (\d+) blocks", text)
    assert told, "the file says what a call reserves"
    assert session_blocks(load_profile(name)) == int(told[1])


def token_bytes(file: Path) -> int:
    return int(json.loads(profile("show", str(file), "--json").stdout)["room"]["kv_bytes_per_token"])


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "[" * 100_000, '{"num_hidden_layers": 2, "num_attention_heads": 0, "hidden_size": 4}'),
        *('{"num_hidden_layers": "x", "num_attention_heads": 2}', '{"num_hidden_layers": 2, "head_dim": 4}'),
    ],
)
def test_show_says_nothing_of_sizes_that_make_no_sense(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    file = write(tmp_path, "qwen3-omni", str(tmp_path), {})
    assert json.loads(profile("show", str(file), "--json", "--memory", "1GiB").stdout)["room"] is None


def test_show_reads_a_local_checkpoint_and_eight_bits_take_half(tmp_path: Path) -> None:
    sizes = {"num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 64}
    for number, config in enumerate(
        (sizes, {"text_config": sizes}, {"thinker_config": {"text_config": sizes}})
    ):
        folder = tmp_path / f"checkpoint-{number}"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        file = write(tmp_path, "qwen3-omni", str(folder), {})
        assert (
            json.loads(profile("show", str(file), "--json").stdout)["room"]["kv_bytes_per_token"]
            == 2 * 3 * 2 * 8 * 2
        )
    file = write(tmp_path, "qwen3-omni", str(folder), {}, pool={"kv": "fp8"}, window={"sinks": 20})
    room = json.loads(profile("show", str(file), "--json").stdout)["room"]
    size = DecoderConfig(64, 3, 8, 2, 8, intermediate=64, vocab=8, norm_eps=1e-6)
    assert room["kv_bytes_per_token"] * 16 == block_bytes(size, 16, FP8)
    assert room["beside_bytes"] == 2 * block_bytes(size, 16, torch.bfloat16)  # two blocks hold the 20 sinks


def test_show_leaves_out_what_nobody_can_know(tmp_path: Path) -> None:
    unbounded: dict[str, object] = {"policy": "unbounded"}
    file = write(tmp_path, "moshi", "kmhf/hf-moshiko", {"rate": 24_000}, window=unbounded)
    room = json.loads(profile("show", str(file), "--memory", "1 GB", "--json").stdout)["room"]
    assert (room["session_bytes"], room["memory_sessions"], room["memory_bytes"]) == (None, None, 10**9)
    assert "has no bound" in profile("show", str(file), "--memory", "1 GB").stdout
    file = write(tmp_path, "qwen2.5-omni", "somebody/elses-omni", {})
    assert json.loads(profile("show", str(file), "--json").stdout)["room"] is None
    result = profile("show", "laptop", "--memory", "plenty")
    assert isinstance(result.exception, ProfileError)


def test_show_says_what_will_be_refused(tmp_path: Path) -> None:
    file = write(tmp_path, "qwen2.5-omni", "Qwen/Qwen2.5-Omni-7B", {}, beat={"frame_s": 2.0})
    shown = profile("show", str(file)).stdout
    assert "refused at the start: a window below the 56 tokens of one frame" in shown
    assert "refused at the start: model.rate other than 16000" in shown
    assert "refused of a caller: output_modalities other than text alone" in shown
    speaks = write(tmp_path, "moshi", "kmhf/hf-moshiko", {"rate": 24_000}, beat={"frame_s": 0.08})
    shown = profile("show", str(speaks)).stdout
    assert "it is resampled to 24 kHz" in shown
    assert "output_modalities other than text alone, or audio with a transcript" in shown


# ---- What only `serve` would refuse ----


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
@pytest.mark.parametrize(
    ("sections", "field"),
    [
        ({"run": {"device": "cuda"}}, "run.device"),
        ({"pool": {"kv": "fp8"}}, "pool.kv"),
        ({"pool": {"blocks": "free"}}, "pool.blocks"),
    ],
)
def test_check_and_doctor_refuse_what_a_machine_cannot_do(
    tmp_path: Path, sections: dict[str, dict[str, object]], field: str
) -> None:
    file = write(tmp_path, "text", "smollm2-135m-instruct", {}, **sections)
    result = profile("check", str(file))
    assert isinstance(result.exception, ProfileError)
    assert result.exception.field == field
    finding = check_model(load_profile(str(file)))
    assert finding.found.startswith(f"{field} = ")
    assert finding.mend == result.exception.cure


def test_check_asks_moshi_for_its_beat(tmp_path: Path) -> None:
    beat = {"frame_s": 0.16, "tau": 1}
    file = write(tmp_path, "moshi", "kmhf/hf-moshiko", {"rate": 24_000, "mode": "free"}, beat=beat)
    result = profile("check", str(file))
    assert isinstance(result.exception, ProfileError)
    assert result.exception.field == "beat.frame_s"


def test_check_asks_a_model_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "choosy.py").write_text(
        "from metronome_cli.errors import ProfileError\n"
        "from metronome_cli.models.null import NullModel\n"
        "class Choosy(NullModel):\n"
        "    @staticmethod\n"
        "    def check(profile):\n"
        "        raise ProfileError('beat.tau', profile.beat.tau, 'use 7')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    result = profile("check", str(write(tmp_path, "choosy:Choosy", "none", {})))
    assert isinstance(result.exception, ProfileError)
    assert result.exception.cure == "use 7"
    with pytest.raises(ProfileError, match="use 7"):  # and so says `serve`
        build(load_profile(str(tmp_path / "mine.toml")))
    result = profile("check", str(write(tmp_path, "nowhere_at_all:Choosy", "none", {})))
    assert "PYTHONPATH" in str(result.exception)


def test_check_counts_pinned_sinks_into_the_bound(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("[window]\nsinks = 16\n")
    assert (
        profile("check", str(file)).stdout == "mine: in order. Its ears hear speech, its thinker answers. "
        "One session needs at most 38 blocks; the pool has 320.\n"
    )


@pytest.mark.parametrize("name", ["laptop", "laptop-text", "demo"])
def test_too_few_blocks_are_refused_with_a_number_that_is_enough(name: str) -> None:
    """Its header's tokens are not counted before a model loads, and take their part."""
    refused = profile("check", name, "--blocks", "1").exception
    assert isinstance(refused, ProfileError)
    enough = json.loads(profile("show", name, "--json").stdout)["session_blocks"]
    assert f"use {enough} or more" in str(refused)
    assert profile("check", name, "--blocks", str(enough)).exit_code == 0


def test_check_warns_of_a_pool_that_cannot_hold_every_call(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("[pool]\nblocks = 100\n")
    result = profile("check", str(file))
    assert result.exit_code == 0
    assert result.stderr.endswith(
        "warning: 100 blocks are 2 calls of 39, and admission.max_sessions is 8: calls beyond 2 are refused "
        "as pool_full; use pool.blocks = 312 or more, a smaller window, or admission.max_sessions = 2\n"
    )
    told = json.loads(profile("check", str(file), "--json").stdout)
    assert told | {"missing": []} == {
        "name": "mine",
        "missing": [],
        "warning": {
            "found": "100 blocks are 2 calls of 39, and admission.max_sessions is 8",
            "costs": "calls beyond 2 are refused as pool_full",
            "mend": "pool.blocks = 312 or more, a smaller window, or admission.max_sessions = 2",
        },
    }
    assert "warning" not in profile("check", "laptop").stderr
    assert json.loads(profile("check", "laptop", "--json").stdout)["warning"] is None


@pytest.mark.parametrize("command", ["check", "show"])
def test_a_null_model_is_said_to_be_one(tmp_path: Path, command: str) -> None:
    file = tmp_path / "beat.toml"
    file.write_text('[model]\nkind = "null"\nthinker = "/nowhere"\n')  # a null model looks for no weights
    result = profile(command, str(file))
    assert result.exit_code == 0
    noted = "note: model.thinker is set, and a model of kind null does not use it\n"
    assert result.stderr == (noted if command == "check" else "")
    assert "A null model, without weights: it says one fixed sentence" in result.stdout


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('thinker = "{here}/nowhere"', "nothing is there; give a folder with a config.json and safetensors"),
        ('thinker = "{here}/mine.toml"', "give a folder with a config.json"),
        ('thinker = "{here}"', "give a folder with a config.json"),
        ('ears = "whisper-nowhere"', "nothing is there; give a Whisper .pt file"),
        ('ears = "{here}"', "give a Whisper .pt file"),
    ],
)
def test_check_refuses_weights_that_are_not_there(tmp_path: Path, line: str, said: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(f"[model]\n{line.format(here=tmp_path)}\n")
    result = profile("check", str(file))
    assert isinstance(result.exception, ProfileError)
    assert result.exception.field == f"model.{line.split(maxsplit=1)[0]}"
    assert said in result.exception.cure
    assert result.stdout == ""


def test_check_names_weights_that_are_still_to_be_fetched(
    tmp_path: Path, tiny_chat: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METRONOME_HOME", str(tmp_path / "empty"))
    result = profile("check", "laptop")
    assert result.exit_code == 0
    assert (
        "note: whisper-tiny.en is missing; `metronome assets fetch whisper-tiny.en` gets it" in result.stderr
    )
    file = tmp_path / "mine.toml"
    file.write_text(f'[model]\nthinker = "{tiny_chat}"\nears = "openai/whisper-tiny.en"\n')
    result = profile("check", str(file))
    assert (result.exit_code, result.stderr.count("note:")) == (0, 1)
    assert "as a hub id it is fetched" in result.stderr


@pytest.mark.parametrize("command", ["check", "show"])
def test_a_profile_that_cannot_work_is_refused(tmp_path: Path, command: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("[pool]\nblocks = 3\n")
    result = profile(command, str(file))
    assert isinstance(result.exception, ProfileError)
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("name", "field", "told"),
    [
        ("laptop-text", "model.ears", '"whisper-tiny.en" (not used by text)'),
        ("laptop", "model.ears", '"whisper-tiny.en"'),
        ("moshi", "model.header", '"" (not used by moshi)'),
        ("minicpm-o-4.5", "model.heard_tokens", "40 (not used by minicpm-o)"),
    ],
)
def test_show_tells_what_means_nothing_to_the_kind_of_model(name: str, field: str, told: str) -> None:
    rows = dict(re.findall(r"^(\w+\.\w+) +(.*\S)", profile("show", name).stdout, re.MULTILINE))
    assert rows[field] == told
    assert (field in json.loads(profile("show", name, "--json").stdout)["unused"]) == ("not used" in told)


def test_a_pool_that_no_number_mends_is_not_told_one(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('[model]\nkind = "null"\n[admission]\nmax_sessions = 1_000_000_000\n')
    said = profile("check", str(tmp_path / "mine.toml")).stderr
    assert "use a smaller window, or admission.max_sessions = 8\n" in said
