"""Which ticks say what a tick costs, and where they are read from."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from metronome_cli.errors import FieldError
from metronome_cli.fit.ticks import gather, read_ticks

from .calls import run, write


def test_runs_arms_and_patterns_are_gathered_in_order(tmp_path: Path) -> None:
    write(tmp_path / "a" / "trace.jsonl", [*run(4, 10, arm="x"), *run(8, 10, arm="y")])
    write(tmp_path / "b.jsonl", run(2, 10))
    ticks = read_ticks([str(tmp_path / "a"), str(tmp_path / "*.jsonl")])
    assert ticks.run_T.tolist() == [0] * 10 + [1] * 10 + [2] * 10
    assert ticks.sessions_T.tolist() == [4] * 10 + [8] * 10 + [2] * 10
    assert [name.split("/")[-1] for name in ticks.names] == [
        "trace.jsonl (x)",
        "trace.jsonl (y)",
        "b.jsonl",
    ]
    assert (ticks.period_s, ticks.pool) == (2.0, 4000)
    assert ticks.reserved_T[0] == 88


def test_idle_and_stalled_ticks_are_left_out() -> None:
    ticks = run(3, 10)
    ticks[2].sessions = 0
    ticks[5].stalled = 1
    assert len(gather({"run": ticks})) == 8


def test_a_run_that_is_always_late_still_tells_its_period() -> None:
    late = [msgspec.structs.replace(tick, tick=3 * tick.tick, due=3 * tick.due) for tick in run(3, 10)]
    assert gather({"late": late}).period_s == pytest.approx(2.0)


def test_what_differs_between_runs_is_not_told() -> None:
    slow = [msgspec.structs.replace(tick, due=2 * tick.due, kv_total=10) for tick in run(3, 10)]
    ticks = gather({"slow": slow, "quick": run(3, 10)})
    assert (ticks.period_s, ticks.pool) == (None, None)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"sessions": 0}, "served calls"),
        ({"stalled": 1}, "got their blocks"),
        ({"done": 0.0}, "more than 0 s"),
    ],
)
def test_a_run_without_such_ticks_is_named(change: dict[str, float], said: str) -> None:
    ticks = [msgspec.structs.replace(tick, **change) for tick in run(3, 10)]
    with pytest.raises(FieldError, match=said) as raised:
        gather({"good": run(3, 10), "bad one": ticks})
    assert raised.value.field.startswith("bad one")


def test_a_file_of_frames_or_without_ticks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FieldError, match=r"frames\.jsonl kind"):
        read_ticks([str(write(tmp_path / "frames.jsonl", [], kind="frames"))])
    with pytest.raises(FieldError, match="at least one tick"):
        read_ticks([str(write(tmp_path / "trace.jsonl", []))])
