"""`metronome doctor`: each lack is found, costs something, and can be mended."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from metronome_cli.cli import checks
from metronome_cli.cli.checks import Finding, check_assets, check_machine, check_port, check_tick
from metronome_cli.cli.machine import Machine, look
from metronome_cli.cli.main import app
from metronome_cli.clock import VirtualClock
from metronome_cli.errors import ProfileError
from metronome_cli.models.assets import ASSETS
from metronome_cli.profile import Profile, load_profile, parse_profile

GIB = 2**30
LAPTOP = load_profile("laptop")
SOUND = Machine(
    cores=4,
    load=0.3,
    free_memory=8 * GIB,
    cache_disk=50 * GIB,
    runs_disk=50 * GIB,
    torch="2.13.0+cpu",
    torch_cuda=None,
    gpu=False,
    open_files=1024,
    late_s=(0.0002,) * 25,
    env={},
    wants=("numpy>=1",),
)


def profile(**sections: Any) -> Profile:
    return parse_profile("mine", sections)


def problems(findings: Iterable[Finding]) -> list[str]:
    """What is wrong; every problem must say how it is mended."""
    found = [finding for finding in findings if not finding.fine]
    assert all(finding.mend for finding in found)
    return [finding.what for finding in found]


def doctor(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["doctor", *arguments])


# ---- Judgements ----


@pytest.mark.parametrize(
    ("sections", "machine", "found"),
    [
        ({"run": {"device": "cuda"}}, {}, "run.device is cuda, and no NVIDIA GPU is here"),
        ({"run": {"device": "cuda"}}, {"gpu": True}, "run.device is cuda, and torch is not built for CUDA"),
        ({"pool": {"kv": "fp8"}}, {}, "pool.kv is fp8, and run.device is cpu"),
        ({"pool": {"blocks": "free"}}, {}, "pool.blocks is free, and run.device is cpu"),
        ({"run": {"device": "cuda"}}, {"gpu": True, "torch_cuda": "12.8"}, ""),
        ({"model": {"kind": "null"}, "run": {"device": "cuda"}}, {}, ""),
    ],
)
def test_a_device_that_is_not_there_is_a_problem(
    sections: dict[str, Any], machine: dict[str, Any], found: str
) -> None:
    findings = check_machine(replace(SOUND, **machine), profile(**sections))
    told = [finding.found for finding in findings if finding.what == "device" and not finding.fine]
    assert told == ([found] if found else [])


def test_a_sound_machine_has_no_problem() -> None:
    assert problems(check_machine(SOUND, LAPTOP)) == []


@pytest.mark.parametrize(
    ("what", "lack"),
    [
        ("cores", {"cores": 1, "load": 0.0}),
        ("load", {"load": 3.2}),
        ("memory", {"free_memory": GIB // 4}),
        ("disk", {"runs_disk": GIB // 2}),
        ("torch", {"torch": None}),
        ("files", {"open_files": 64}),
        ("clock", {"late_s": (0.0002,) * 20 + (0.03,) * 5}),
        ("threads", {"env": {"OMP_WAIT_POLICY": "ACTIVE"}}),
        ("threads", {"env": {"OMP_THREAD_LIMIT": "1"}}),
        ("packages", {"wants": ("numpy>=1", "numpy<1")}),
        ("packages", {"wants": ("no-such-package-anywhere>=2",)}),
    ],
)
def test_each_lack_is_a_problem_of_its_own(what: str, lack: dict[str, Any]) -> None:
    assert problems(check_machine(replace(SOUND, **lack), LAPTOP)) == [what]


@pytest.mark.parametrize(
    "harmless",
    [
        {"free_memory": None},
        {"env": {"OMP_NUM_THREADS": "1", "OMP_THREAD_LIMIT": "64", "OMP_WAIT_POLICY": "passive"}},
        {"env": {"OMP_THREAD_LIMIT": "9" * 5000}},
        {"late_s": (0.0002,) * 24 + (0.03,)},
        {"wants": ()},
        {"wants": ('no-such-package-anywhere>=2 ; extra == "dev"',)},
        {"gpu": True, "torch_cuda": "13.0"},
    ],
)
def test_what_costs_nothing_is_no_problem(harmless: dict[str, Any]) -> None:
    assert problems(check_machine(replace(SOUND, **harmless), LAPTOP)) == []


def test_a_version_out_of_range_is_named_with_the_command_that_mends_it() -> None:
    wrong = replace(SOUND, wants=("numpy<1,>=0.5",))
    finding = next(finding for finding in check_machine(wrong, LAPTOP) if not finding.fine)
    assert finding.found == f"numpy is {metadata.version('numpy')}"
    assert finding.mend == "pip install 'numpy<1,>=0.5'"


def test_a_pool_that_cannot_hold_every_call_is_a_problem_of_the_profile() -> None:
    small = profile(pool={"blocks": 100}, admission={"max_sessions": 8})
    finding = next(finding for finding in check_machine(SOUND, small) if finding.what == "pool")
    assert finding.found == "100 blocks are 2 calls of 39, and admission.max_sessions is 8"
    mended = profile(pool={"blocks": 312}, admission={"max_sessions": 8})
    assert problems(check_machine(SOUND, mended)) == []
    unbounded = profile(pool={"blocks": 40}, window={"policy": "unbounded"})
    assert problems(check_machine(SOUND, unbounded)) == []


def test_memory_is_counted_from_weights_and_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """320 blocks of 16 places, 2 layers, 3 heads of 64, keys and values, 2 bytes each."""
    monkeypatch.setenv("METRONOME_HOME", str(tmp_path / "empty"))
    config = {"num_hidden_layers": 2, "num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 576}
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = {"kind": "text", "thinker": str(tmp_path), "dtype": "bfloat16"}
    of_program = checks.memory_needed(profile(model={"kind": "null"}))
    assert checks.memory_needed(profile(model=model)) - of_program == 320 * 16 * 2 * 3 * 64 * 2 * 2
    assert checks.memory_needed(LAPTOP) - of_program >= ASSETS["smollm2-135m-instruct"].size


def test_an_empty_cache_costs_the_profile_and_every_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METRONOME_HOME", str(tmp_path))
    found = {finding.what: finding for finding in check_assets(LAPTOP)}
    assert found.keys() == ASSETS.keys()
    assert [name for name, finding in found.items() if finding.fine] == ["questions"]
    assert found["whisper-tiny.en"].costs == "the profile laptop does not start"
    assert found["moby-dick"].mend == "metronome assets fetch moby-dick"
    text = {finding.what: finding for finding in check_assets(load_profile("laptop-text"))}
    assert text["whisper-tiny.en"].costs == "no built-in profile hears speech"
    assert "disk" in problems(check_machine(replace(SOUND, cache_disk=GIB // 100), LAPTOP))


def test_a_damaged_and_an_outdated_asset_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METRONOME_HOME", str(tmp_path))
    for name in ("speech", "librivox"):
        (tmp_path / name).mkdir()
    outdated = {"asset": "speech", "licence": "", "sources": [], "recipe": "an older one", "files": {}}
    (tmp_path / "speech" / "manifest.json").write_text(json.dumps(outdated))
    found = {finding.what: finding.found for finding in check_assets(LAPTOP)}
    assert found["speech"] == "damaged (another version of this program made it)"
    assert found["librivox"].startswith("damaged (manifest.json")


def test_every_asset_has_something_to_lose() -> None:
    assert checks._LOST.keys() == ASSETS.keys()


def test_weights_of_ones_own_are_looked_for_but_never_fetched(tmp_path: Path) -> None:
    model = {"kind": "cascade", "thinker": str(tmp_path), "ears": "nowhere"}
    found = {finding.what: finding for finding in check_assets(profile(model=model))}
    assert found["model.thinker"].found == f"model.thinker = '{tmp_path}'"
    assert found["model.thinker"].mend.startswith(
        "no checkpoint lies there; give a folder with a config.json"
    )
    assert found["model.ears"].costs == "the profile mine does not start"
    assert "nothing is there; give a Whisper .pt file" in found["model.ears"].mend
    (tmp_path / "config.json").write_text("{}")
    found = {finding.what: finding for finding in check_assets(profile(model=model))}
    assert found["model.thinker"].found == f"{tmp_path}, a local path"
    assert found["model.thinker"].fine
    hub = profile(model={"kind": "text", "thinker": "some/model"})
    assert next(iter(check_assets(hub))).fine


def test_a_port_in_use_is_found_and_left_alone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        finding = check_port(profile(server={"port": port}))
        assert finding.costs == "`serve` does not start"
        assert "another port" in finding.mend
    assert check_port(profile(server={"port": port})).fine


class Slow(VirtualClock):
    """A clock by which everything takes a second between two looks at it."""

    def now(self) -> float:
        self.advance(1.0)
        return super().now()


def test_a_tick_longer_than_its_beat_is_a_problem() -> None:
    null = profile(model={"kind": "null"}, beat={"frame_s": 0.5})
    assert check_tick(null, VirtualClock()).fine
    finding = check_tick(null, Slow())
    assert finding.found == "8 calls in 1.00 s of 0.5 s at most, windows not yet full"
    assert problems([finding]) == ["tick"]


def test_a_model_that_cannot_be_loaded_is_a_finding_and_no_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METRONOME_HOME", str(tmp_path))
    finding = check_tick(load_profile("laptop-text"), VirtualClock())
    assert "smollm2-135m-instruct is missing" in finding.found
    assert problems([finding]) == ["tick"]


# ---- Facts ----


def test_this_machine_is_seen_as_it_is(tmp_path: Path) -> None:
    seen = look(tmp_path / "cache" / "not" / "yet", tmp_path, VirtualClock())
    assert seen.cores >= 1
    assert seen.late_s == (0.0,) * 25
    assert seen.torch == metadata.version("torch")
    assert seen.cache_disk == pytest.approx(seen.runs_disk, rel=0.1)
    assert any(want.startswith("torch") for want in seen.wants)
    if sys.platform == "linux":
        assert seen.free_memory is not None
        assert 0 < seen.free_memory < 2**50


# ---- The command ----


def test_the_exit_code_says_whether_anything_is_wrong() -> None:
    result = doctor("--profile", "laptop-text", "--json")
    told = json.loads(result.stdout)
    assert told["held"] == all(finding["fine"] for finding in told["findings"])
    assert result.exit_code == (0 if told["held"] else 3)
    names = [finding["what"] for finding in told["findings"]]
    assert {"packages", "torch", "cores", "memory", "disk", "clock", "port", "questions"} <= set(names)
    assert "tick" not in names


def test_each_problem_is_one_line_with_its_cost_and_its_cure(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('[model]\nkind = "null"\n[run]\nthreads = 1024\n[server]\nport = 0\n')
    result = doctor("--profile", str(file))
    assert result.exit_code == 3
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("cores: ")]
    assert "Costs: 1024 threads wait for each other" in line
    assert "Mend: set run.threads to " in line


def test_a_sound_machine_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metronome_cli.cli.doctor._look", lambda *_: [Finding("cores", "4 usable")])
    result = doctor()
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, "nothing is wrong")


def test_a_profile_that_does_not_exist_is_wrong_use() -> None:
    result = doctor("--profile", "no-such")
    assert isinstance(result.exception, ProfileError)
    assert result.exception.exit_code == 2


def test_without_deep_torch_is_not_loaded() -> None:
    code = (
        "import sys\nfrom metronome_cli.cli.main import app\n"
        "try: app(['doctor', '--json'])\nexcept SystemExit: print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines()[-1] == "False"


def test_deep_times_a_tick_of_the_model(tmp_path: Path) -> None:
    file = tmp_path / "null.toml"
    file.write_text('[model]\nkind = "null"\n[beat]\nframe_s = 5.0\n')
    found = json.loads(doctor("--profile", str(file), "--deep", "--json").stdout)["findings"][-1]
    assert (found["what"], found["fine"]) == ("tick", True)
    assert found["found"].startswith("8 calls in ")
    assert found["found"].endswith(" s of 5 s at most, windows not yet full")
