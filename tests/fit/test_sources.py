"""Series from files: traces of ours and CSV."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from metronome_cli.errors import FieldError
from metronome_cli.fit.sources import expand, name_of, read_trace
from metronome_cli.trace import FrameRecord, Header, TickRecord, write_line

PUBLISHED = Path(__file__).parents[1] / "data" / "unbounded_qwen3_omni_30b_n128.csv"


def trace(path: Path, ticks: Sequence[TickRecord], kind: str = "trace") -> Path:
    with path.open("wb") as file:
        write_line(file, Header(kind=kind, monotonic_zero=1000.0, wall_zero=0.0))
        for tick in ticks:
            write_line(file, tick)
    return path


def ticks(count: int = 10, arm: str = "", begin: float = 1000.0, **fields: int) -> list[TickRecord]:
    """Beats of two seconds that take half a second, the pool a block fuller with each."""
    rest: dict[str, Any] = {"sessions": 3, "kv_total": 40} | fields
    return [
        TickRecord(tick=n, due=due, start=due, done=due + 0.5, arm=arm, **{"kv_leased": n} | rest)
        for n, due in enumerate(begin + 2.0 * n for n in range(count))
    ]


def csv(path: Path, text: str) -> Path:
    path.write_text(text, "utf-8")
    return path


# ---- Traces of ours ----


def test_a_trace_gives_occupancy_sessions_stalls_and_beats(tmp_path: Path) -> None:
    [source] = read_trace(trace(tmp_path / "trace.jsonl", ticks(stalled=1)))
    series = source.series
    assert series.t_s.tolist() == [2.0 * n + 0.5 for n in range(10)]
    assert series.occupancy.tolist() == [n / 40 for n in range(10)]
    assert series.sessions is not None
    assert series.sessions.tolist() == [3.0] * 10
    assert series.stalled is not None
    assert series.stalled.tolist() == [1.0] * 10
    assert series.pool == 40
    assert source.beats is not None
    assert (source.beats.period_s, source.beats.took_s) == (2.0, [0.5] * 10)


def test_idle_beats_say_nothing_of_how_long_a_beat_takes(tmp_path: Path) -> None:
    mixed = ticks(6) + [tick for tick in ticks(12, sessions=0) if tick.tick >= 6]
    [source] = read_trace(trace(tmp_path / "trace.jsonl", mixed))
    assert source.beats is not None
    assert source.beats.sessions == [3.0] * 6
    [source] = read_trace(trace(tmp_path / "idle.jsonl", ticks(sessions=0)))
    assert source.beats is None


def test_a_run_folder_means_its_trace_and_each_arm_is_a_source_of_its_own(tmp_path: Path) -> None:
    both = ticks(6, arm="unbounded") + ticks(7, arm="window", begin=2000.0)
    path = trace(tmp_path / "trace.jsonl", both)
    found = read_trace(tmp_path)
    assert [source.series.name for source in found] == [f"{path} (unbounded)", f"{path} (window)"]
    assert [len(source.series) for source in found] == [6, 7]
    assert [source.series.t_s[0] for source in found] == [0.5, 0.5]


@pytest.mark.parametrize(
    ("records", "kind", "said"),
    [
        (ticks(3), "trace", "at least 5 rows"),
        (ticks(kv_total=0), "trace", "kv_total = 0: expected ticks that tell the blocks"),
        ([], "trace", "expected ticks"),
        (ticks(), "frames", "give the trace.jsonl beside it"),
        (ticks(6) + ticks(6), "trace", "row 7.*time goes back"),
        (ticks(kv_leased=41), "trace", "kv_occupancy, row 1.*shares"),
    ],
)
def test_a_trace_that_cannot_be_fitted_is_refused_by_name(
    tmp_path: Path, records: list[TickRecord], kind: str, said: str
) -> None:
    path = trace(tmp_path / "trace.jsonl", records, kind)
    with pytest.raises(FieldError, match=said) as refused:
        read_trace(path)
    assert str(path) in str(refused.value)


def test_a_line_that_is_no_record_is_named(tmp_path: Path) -> None:
    path = trace(tmp_path / "trace.jsonl", ticks())
    frame = FrameRecord(session=0, age_s=0.0, frame=0, tick=0, due=0.0, audio_end_ms=0.0)
    with path.open("ab") as file:
        write_line(file, frame)
    with pytest.raises(FieldError, match="line 12"):
        read_trace(path)


# ---- CSV ----


def test_a_csv_gives_what_its_columns_say_whatever_else_it_has(tmp_path: Path) -> None:
    rows = "".join(f"{t},x,{t / 100},{t + 1}\n\n" for t in range(8))
    [source] = read_trace(csv(tmp_path / "a.csv", "\ufefft_s,other, kv_occupancy,sessions\n" + rows))
    assert source.series.t_s.tolist() == list(range(8))
    assert source.series.occupancy.tolist() == [t / 100 for t in range(8)]
    assert source.series.sessions is not None
    assert source.series.sessions.tolist() == [t + 1 for t in range(8)]
    assert source.beats is None


def test_the_published_trace_has_no_sessions() -> None:
    [source] = read_trace(PUBLISHED)
    assert len(source.series) == 83
    assert source.series.sessions is None


def rows(*changed: tuple[int, str]) -> str:
    """Ten rows that rise, some of them others."""
    lines = [f"{t},{t / 100}" for t in range(10)]
    for number, line in changed:
        lines[number - 1] = line
    return "t_s,kv_occupancy\n" + "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("t_s,kv_occupancy\n0,0.1\n1,0.2\n", "at least 5 rows"),
        ("", "expected the columns t_s, kv_occupancy"),
        ("t_s;kv_occupancy\n0;0.1\n", "expected the columns t_s, kv_occupancy"),
        ("time,usage\n0,0.1\n", "'time,usage'"),
        (rows((4, "3,nan")), "kv_occupancy, row 4 = nan"),
        (rows((4, "nan,0.03")), "t_s, row 4 = nan"),
        (rows((5, "4,inf")), "kv_occupancy, row 5 = inf"),
        (rows((3, "2,12.5")), "kv_occupancy, row 3 = 12.5: .*not percent"),
        (rows((3, "2,-0.1")), "kv_occupancy, row 3 = -0.1"),
        (rows((6, "1,0.05")), "t_s, row 6 = 1.0: time goes back"),
        (rows((2, "1,about 3")), "kv_occupancy, row 2 = 'about 3': expected a number"),
        (rows((2, "1")), "kv_occupancy, row 2 = '': expected a number"),
        (rows((2, "1,0.01,7")).replace("occupancy\n", "occupancy,sessions\n"), "sessions, row 1 = ''"),
        ("t_s,kv_occupancy,x,t_s\n" + "0,0,0,0\n" * 9, "'t_s,kv_occupancy,x,t_s': give one column t_s"),
        (rows((10, "1e300,0.1")), "t_s, row 10 = 1e.300: give seconds"),
    ],
)
def test_a_csv_that_cannot_be_fitted_is_refused_with_file_and_row(
    tmp_path: Path, text: str, said: str
) -> None:
    path = csv(tmp_path / "bad.csv", text)
    with pytest.raises(FieldError, match=said) as refused:
        read_trace(path)
    assert str(path) in str(refused.value)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n\xff\xfe")
    with pytest.raises(FieldError, match=r"picture\.png.*trace\.jsonl or a CSV"):
        read_trace(tmp_path / "picture.png")


def test_columns_that_are_not_read_may_have_one_name(tmp_path: Path) -> None:
    text = "x,t_s,x,kv_occupancy\n" + "".join(f"1,{t},2,{t / 100}\n" for t in range(8))
    [source] = read_trace(csv(tmp_path / "a.csv", text))
    assert source.series.occupancy.tolist() == [t / 100 for t in range(8)]


def test_what_calls_were_promised_is_told_by_the_server_and_not_by_its_callers(tmp_path: Path) -> None:
    for told, promised in (
        (ticks(kv_reserved=20, cap=8), [0.5] * 10),
        (ticks(kv_reserved=0, cap=8), [0.0] * 10),  # unbounded calls
        (ticks(), None),
    ):
        [source] = read_trace(trace(tmp_path / "trace.jsonl", told))
        found = source.series.promised
        assert (None if found is None else found.tolist()) == promised


# ---- Pipes ----


@pytest.mark.parametrize("text", [rows(), None])
def test_a_pipe_is_read_like_the_file_that_went_into_it(tmp_path: Path, text: str | None) -> None:
    path = csv(tmp_path / "a", text) if text else trace(tmp_path / "a", ticks())
    with subprocess.Popen(["cat", path], stdout=subprocess.PIPE) as writer:  # noqa: S607
        assert writer.stdout is not None
        [piped] = read_trace(Path(f"/dev/fd/{writer.stdout.fileno()}"))
    [source] = read_trace(path)
    assert piped.series.occupancy.tolist() == source.series.occupancy.tolist()


# ---- Names ----


def test_patterns_and_names_are_each_read_once_and_in_order(tmp_path: Path) -> None:
    for name in ("b.csv", "a.csv", "c.txt"):
        (tmp_path / name).touch()
    found = expand([str(tmp_path / "b.csv"), str(tmp_path / "*.csv")])
    assert found == [tmp_path / "b.csv", tmp_path / "a.csv"]


def test_a_pattern_leaves_out_runs_that_recorded_no_trace(tmp_path: Path) -> None:
    for name in ("1-load-a", "2-fit-collapse-model-1-load-a"):
        (tmp_path / name).mkdir()
    (tmp_path / "1-load-a" / "trace.jsonl").touch()
    assert expand([str(tmp_path / "*-load-*")]) == [tmp_path / "1-load-a"]
    with pytest.raises(FieldError, match=r"no run folder with a trace\.jsonl"):
        expand([str(tmp_path / "*-fit-*")])


def test_a_pattern_that_fits_runs_leaves_out_what_lies_beside_them(tmp_path: Path) -> None:
    for name in ("n-0001", "n-0002", "n-0003"):
        (tmp_path / name).mkdir()
    for name in (
        "n-0001/trace.jsonl",
        "n-0002/trace.jsonl",
        "n-0002/frames.jsonl",
        "plan.json",
        "a.png",
        "b.csv",
    ):
        (tmp_path / name).touch()
    runs = [tmp_path / "n-0001", tmp_path / "n-0002"]
    assert expand([f"{tmp_path}/*"]) == [tmp_path / "b.csv", *runs]
    assert expand([f"{tmp_path}/n-0002/*"]) == [tmp_path / "n-0002" / "trace.jsonl"]


def test_a_name_with_brackets_is_a_name_before_it_is_a_pattern(tmp_path: Path) -> None:
    (tmp_path / "run[1].csv").touch()
    assert expand([str(tmp_path / "run[1].csv")]) == [tmp_path / "run[1].csv"]


def test_a_run_is_named_after_what_was_read_and_no_pattern_stands_in_a_name(tmp_path: Path) -> None:
    (tmp_path / "1-load-a").mkdir()
    for name in ("1-load-a/trace.jsonl", "ramp.csv"):
        (tmp_path / name).touch()
    words = ("1-load-a", "1-load-a/trace.jsonl", "ramp.csv", "*-load-*", "r*.csv")
    named = [name_of([str(tmp_path / word)]) for word in words]
    # No fit of a load is one of *-load-*; a pattern that fits one run means that one.
    assert named == ["1_load_a", "1_load_a", "ramp", "1_load_a", "ramp"]
    (tmp_path / "other.csv").touch()
    assert (
        name_of([str(tmp_path / "*.csv")]) == name_of([str(tmp_path / word) for word in words]) == "several"
    )


@pytest.mark.parametrize("word", ["missing.csv", "*.csv"])
def test_what_names_nothing_is_refused(tmp_path: Path, word: str) -> None:
    with pytest.raises(FieldError, match="no file, and no run folder"):
        expand([str(tmp_path / word)])


def test_a_trace_nested_beyond_reason_is_refused(tmp_path: Path) -> None:
    (tmp_path / "deep.jsonl").write_text('{"a":' * 100_000)
    with pytest.raises(FieldError, match=r"deep\.jsonl"):
        read_trace(tmp_path / "deep.jsonl")


def test_more_calls_than_any_server_holds_are_refused(tmp_path: Path) -> None:
    rows = "".join(f"{n},{n / 100},1e308\n" for n in range(20))
    (tmp_path / "huge.csv").write_text("t_s,kv_occupancy,sessions\n" + rows)
    with pytest.raises(FieldError, match="sessions, row 1"):
        read_trace(tmp_path / "huge.csv")


def test_a_folder_without_a_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FieldError, match=r"has a trace\.jsonl"):
        read_trace(tmp_path)
    search = tmp_path / "find[1]"
    (search / "run").mkdir(parents=True)
    trace(search / "run" / "trace.jsonl", ticks())
    (search / "find-n.png").touch()
    with pytest.raises(FieldError, match="it holds runs: name some of them, or all with") as refused:
        read_trace(search)
    assert expand([str(refused.value).split('"')[1]]) == [search / "run"]  # what it says is what helps
