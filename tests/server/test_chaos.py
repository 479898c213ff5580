"""A short storm of vanishing callers and of rubbish; evals/chaos has the long ones, and how to replay one."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metronome_cli import wire
from metronome_cli.clock import SystemClock
from metronome_cli.errors import InputError
from metronome_cli.profile import parse_profile
from metronome_cli.server.link import EngineLink
from metronome_cli.server.realtime import Call

ROOT = Path(__file__).parents[2]
TOO_SHORT_FOR_MEMORY = (3, ["memory was not judged: the run was too short"])  # and nothing else is wrong


@pytest.fixture
def evals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a test import evals/, which is no part of the package."""
    monkeypatch.syspath_prepend(ROOT)


STORMS = {
    "vanish": ("--clients", "40", "--warm-up", "0", "--quiet-s", "0.5", "--seed", "3"),
    "fuzz": ("--events", "800", "--quiet-s", "2.5", "--seed", "2"),
}
Storms = dict[str, subprocess.Popen[str]]


@pytest.fixture(scope="module")
def storms() -> Iterator[Storms]:
    """Both runs at once, each with a server of its own: they wait more than they work."""
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    command = [sys.executable, "-m", "evals.chaos.run"]
    running = {
        name: subprocess.Popen([*command, name, *given], cwd=ROOT, **pipes) for name, given in STORMS.items()
    }
    yield running
    for process in running.values():
        process.kill()
        process.communicate()


def outcome(process: subprocess.Popen[str]) -> tuple[int, dict[str, Any]]:
    """Exit code and results of a run."""
    said, complaint = process.communicate(timeout=150)
    assert said, complaint
    return process.returncode, json.loads(said)


def test_of_forty_clients_that_vanish_in_seeded_ways_nothing_is_left(storms: Storms) -> None:
    code, results = outcome(storms["vanish"])
    assert (code, results["faults"]) == TOO_SHORT_FOR_MEMORY, results
    assert sum(results["ways"].values()) == 40
    assert len(results["ways"]) >= 8
    assert results["calls"] > 20  # most of them were let in
    assert results["witness_beside"]["frames"] > 10


def test_eight_hundred_events_of_rubbish_are_each_answered_and_disturb_nobody(storms: Storms) -> None:
    code, results = outcome(storms["fuzz"])
    assert (code, results["faults"]) == TOO_SHORT_FOR_MEMORY, results
    assert results["events"] == 800
    assert results["refused"] > 250
    assert len(results["codes"]) > 8
    assert len(results["witness_alone"]["replies"]) > 1


def test_the_net_of_a_call_that_is_over_is_given_back_at_once() -> None:
    async def scene() -> None:
        profile = parse_profile("null", {"model": {"kind": "null", "mode": "turn"}})
        call = Call(EngineLink(profile, SystemClock()), profile, SystemClock())
        call._detector.take(np.random.default_rng(0).normal(0, 0.1, 2048).astype(np.float32))
        assert call._detector._net is not None
        call.over()
        assert call._detector._net is None

    asyncio.run(scene())


def refusal(text: str) -> InputError | None:
    """Why the server's decoder does not take a text."""
    try:
        wire.decode_client_event(text)
    except InputError as error:
        return error
    return None


@pytest.mark.usefixtures("evals")
def test_the_oracle_and_the_decoder_agree_on_what_is_no_event() -> None:
    from evals.chaos import mutate, oracle

    refused = 0
    for connection in (*range(12), mutate.MADE_UP_EVERY - 1):
        for text in mutate.texts(7, connection, 150):
            want, error = oracle.expected(text), refusal(text)
            if error is None:
                assert not want.refused or len(text.encode()) > oracle.MOST_BYTES, text
            else:
                refused += 1
                assert error.field, text
                assert error.code, text
                assert wire.event_id_of(text) == want.event_id, text
    assert refused > 500


@pytest.mark.usefixtures("evals")
def test_the_same_seed_says_the_same_and_another_does_not() -> None:
    from evals.chaos import mutate

    for connection in (3, mutate.MADE_UP_EVERY - 1):
        assert mutate.texts(5, connection, 40) == mutate.texts(5, connection, 40)
        assert mutate.texts(5, connection, 40) != mutate.texts(6, connection, 40)


@pytest.mark.usefixtures("evals")
def test_the_judge_sees_an_error_that_is_missing_doubled_misaddressed_or_without_a_cure() -> None:
    from evals.chaos import oracle

    def error(**fields: Any) -> wire.ErrorDetail:
        good = {
            "type": "invalid_request_error",
            "code": "unknown_event",
            "message": "type = 'dance': use another",
            "param": "type",
            "event_id": "mine",
        }
        return wire.ErrorDetail(**good | fields)

    text = '{"type": "dance", "event_id": "mine"}'
    assert oracle.judge(text, [error()], set()) == []
    wrong = {
        "missing": [],
        "doubled": [error(), error()],
        "misaddressed": [error(event_id="yours")],
        "addressed to nobody": [error(event_id=None)],
        "without a field": [error(param=None)],
        "without a cure": [error(message="no")],
        "endless": [error(message="type = 1: " + "x" * 2000)],
    }
    assert [name for name, errors in wrong.items() if not oracle.judge(text, errors, {"yours"})] == []


@pytest.mark.usefixtures("evals")
def test_the_judge_lets_an_error_of_the_engine_come_late_but_not_for_nothing() -> None:
    from evals.chaos import oracle

    late = wire.ErrorDetail(
        type="invalid_request_error",
        code="buffer_full",
        message="audio = '6.00 s': at most 5 s may wait",
        param="audio",
        event_id="before",
    )
    good = '{"type": "input_audio_buffer.clear", "event_id": "mine"}'
    assert oracle.judge(good, [late], {"before"}) == []
    assert oracle.judge(good, [late], set())


@pytest.mark.usefixtures("evals")
@pytest.mark.parametrize(
    ("slope", "fault"),
    [
        ({"low": -900.0, "high": 3999.0}, []),
        ({"low": -900.0, "high": 4000.0}, ["memory may have grown: a longer run would tell"]),
        ({"low": 4000.0, "high": 5000.0}, ["memory grew"]),
        (None, ["memory was not judged: the run was too short"]),
    ],
)
def test_memory_is_flat_only_when_no_growth_in_the_interval_reaches_the_limit(
    slope: dict[str, float] | None, fault: list[str]
) -> None:
    from evals.chaos.judged import broken, flat

    fine = {"low": 0.0, "high": 1.0}
    assert broken(flat({"gateway_kib": slope, "engine_kib": fine}, 4000)) == fault
