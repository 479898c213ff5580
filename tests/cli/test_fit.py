"""`metronome fit collapse-model`, from files and from pages of live servers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metronome_cli import clock
from metronome_cli.cli.main import main
from metronome_cli.clock import VirtualClock
from metronome_cli.trace import Header, TickRecord, write_line
from tests.pages import Page, recorded, serving

PUBLISHED = Path(__file__).parents[1] / "data" / "unbounded_qwen3_omni_30b_n128.csv"
Fit = Callable[..., tuple[int, str, str]]


@pytest.fixture
def drawing_fit(metronome: Fit, tmp_path: Path) -> Fit:
    """The command, with its exit code, standard output and standard error."""
    return partial(metronome, "fit", "collapse-model", "--out", tmp_path / "runs")


@pytest.fixture
def fit(drawing_fit: Fit, undrawn: None) -> Fit:
    """The same with pictures that are empty."""
    return drawing_fit


def csv(path: Path, end: float, rows: int = 90) -> Path:
    """A pool that fills from 12 s on by 0.6 % a second, until `end`."""
    t = np.arange(rows, dtype=float)
    occupancy = np.clip(0.006 * (t - 12.0), 0.0, end)
    lines = [f"{at:g},{share:.3f},32" for at, share in zip(t, occupancy, strict=True)]
    path.write_text("\n".join(["t_s,kv_occupancy,sessions", *lines]) + "\n")
    return path


def folder(tmp_path: Path) -> Path:
    [found] = (tmp_path / "runs").iterdir()
    return found


# ---- Files ----


def test_a_ramp_is_told_in_a_table_a_sentence_and_a_run_folder(drawing_fit: Fit, tmp_path: Path) -> None:
    code, out, err = drawing_fit(csv(tmp_path / "ramp.csv", 0.5))
    assert code == 0
    assert "Collapse model" in out
    assert "If calls have no bound, the pool will be full at" in " ".join(out.split())
    assert f"run: {folder(tmp_path)}" in err
    assert folder(tmp_path).name.endswith("-fit-collapse-model-ramp")
    assert {path.name for path in folder(tmp_path).iterdir()} == {"report.json", "summary.md", "fit.png"}


def test_json_is_one_document_that_begins_with_t_sat(fit: Fit, tmp_path: Path) -> None:
    code, out, _ = fit(csv(tmp_path / "ramp.csv", 0.5), "--json", "--level", 0.8)
    assert code == 0
    told: dict[str, Any] = json.loads(out)
    assert next(iter(told)) == "t_sat"
    assert told["shape"] == "ramp"
    assert told["t_sat"]["low"] <= told["t_sat"]["estimate"] <= told["t_sat"]["high"]
    assert told["t_sat"]["estimate"] == pytest.approx(12 + 1 / 0.006, rel=0.03)
    assert told["rate_per_session"] == pytest.approx(0.006 / 32, rel=0.05)
    assert told["left_s"] == pytest.approx(told["t_sat"]["estimate"] - told["last_s"])
    assert told["level"] == 0.8


def test_a_pool_that_levels_off_has_a_ceiling_and_no_moment(fit: Fit, tmp_path: Path) -> None:
    code, out, _ = fit(csv(tmp_path / "window.csv", 0.25), "--json", "--fail-under", "1h")
    told = json.loads(out)
    assert code == 0
    assert (told["shape"], told["t_sat"], told["left_s"]) == ("plateau", None, None)
    assert told["plateau"]["level"]["estimate"] == pytest.approx(0.25, abs=0.005)
    assert told["plateau"]["ceiling"] == pytest.approx(128, abs=2)


def test_a_forecast_from_half_fill_is_scored_by_the_rest(fit: Fit) -> None:
    code, out, _ = fit(PUBLISHED, "--at", 0.5, "--json")
    told = json.loads(out)
    assert code == 0
    assert told["last_s"] < 80
    assert told["score"]
    assert told["t_sat"]["estimate"] == pytest.approx(146.5, rel=0.05)


def test_a_session_length_gives_a_probability(fit: Fit, tmp_path: Path) -> None:
    path = csv(tmp_path / "ramp.csv", 0.5)
    short, long = (
        json.loads(fit(path, "--json", "--session-length", length)[1])["collapse_probability"]
        for length in ("60s", "10m")
    )
    assert short < 0.1
    assert long > 0.9


def test_several_are_a_list_and_a_table_with_a_row_each(fit: Fit, tmp_path: Path) -> None:
    csv(tmp_path / "ramp.csv", 0.5)
    csv(tmp_path / "window.csv", 0.25)
    code, out, _ = fit(tmp_path / "*.csv", "--json")
    assert code == 0
    assert [told["shape"] for told in json.loads(out)] == ["ramp", "plateau"]
    _, out, _ = fit(tmp_path / "ramp.csv", tmp_path / "window.csv")
    assert "1 of 2 pools is full or will be" in " ".join(out.split())
    assert "In these tables" in out
    assert "Forecasts beside what happened" not in out


def test_scores_of_several_are_shown_in_the_table_too(fit: Fit, tmp_path: Path) -> None:
    code, out, _ = fit(
        csv(tmp_path / "one.csv", 1.0, 200), csv(tmp_path / "other.csv", 1.0, 190), "--at", 0.5
    )
    assert code == 0
    table = out[out.index("Forecasts beside what happened") :]
    assert table.count("177.8") == 2  # 12 s + 0.995 / 0.006


def test_half_way_of_a_demo_is_told_for_both_of_its_arms(fit: Fit, tmp_path: Path) -> None:
    """A load tells whether its calls have a bound: few beats are enough."""
    (tmp_path / "demo").mkdir()
    with (tmp_path / "demo" / "trace.jsonl").open("wb") as file:
        write_line(file, Header(kind="trace", monotonic_zero=0.0, wall_zero=0.0))
        for arm, most in (("unbounded", 86), ("window", 54)):
            held = np.minimum([12, 15, 15, 23, 30, 32, 34, 42, 48, 66, 69, 70, 73, 83, 84, 86, 86, 86], most)
            for n, blocks in enumerate(held.tolist()):
                tick = TickRecord(
                    tick=n, due=3.0 * n, start=3.0 * n, done=3.0 * n + 1.5, kv_total=86, arm=arm
                )
                tick.sessions, tick.kv_leased, tick.bounded = 3, blocks, arm == "window"
                write_line(file, tick)
    code, out, _ = fit(tmp_path / "*demo*", "--at", 0.5, "--json")
    assert code == 0
    unbounded, window = json.loads(out)
    assert (unbounded["shape"], unbounded["points"], unbounded["bounded"]) == ("ramp", 8, False)
    assert unbounded["score"]["full_s"] == pytest.approx(45.86, abs=0.01)  # between 84 and 86 blocks
    assert unbounded["score"]["inside"]
    assert (window["shape"], window["t_sat"], window["score"]["full_s"]) == ("plateau", None, None)
    code, out, _ = fit(tmp_path / "*demo*", "--at", 0.5)
    assert "not seen" in out


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="no names for open pipes here")
def test_a_pipe_is_fitted_like_a_file(fit: Fit, tmp_path: Path) -> None:
    path = csv(tmp_path / "ramp.csv", 0.5)
    with subprocess.Popen(["cat", path], stdout=subprocess.PIPE) as writer:  # noqa: S607
        assert writer.stdout is not None
        code, out, _ = fit(f"/dev/fd/{writer.stdout.fileno()}", "--json")
    assert code == 0
    assert json.loads(out)["t_sat"] == json.loads(fit(path, "--json")[1])["t_sat"]


def test_the_arms_of_a_run_are_told_apart_and_the_beat_says_which_limit_binds(
    fit: Fit, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    with (run / "trace.jsonl").open("wb") as file:
        write_line(file, Header(kind="trace", monotonic_zero=0.0, wall_zero=0.0))
        for arm, most in (("unbounded", 600), ("window", 200)):
            for n in range(100):
                live = min(1 + n // 3, 20)
                leased = min(sum(min(1 + k // 3, 20) for k in range(n)) // 3, most)
                took = 0.1 + 0.01 * live
                tick = TickRecord(tick=n, due=n, start=n, done=n + took, kv_total=1000, arm=arm)
                tick.sessions, tick.kv_leased = live, leased
                write_line(file, tick)
    code, out, _ = fit(run, "--json")
    assert code == 0
    unbounded, window = json.loads(out)
    assert unbounded["source"].endswith("(unbounded)")
    assert unbounded["limit"]["binds"] == "memory"
    assert window["shape"] == "plateau"
    # 0.1 s + 90 sessions of 0.01 s fill the beat; memory holds 100.
    assert window["limit"]["binds"] == "deadline"
    assert window["limit"]["deadline_sessions"] == pytest.approx(90, abs=1)


def test_the_same_is_drawn_again(drawing_fit: Fit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawing_fit(csv(tmp_path / "ramp.csv", 0.5))
    found = folder(tmp_path)
    files = {path.name: path.read_bytes() for path in found.iterdir()}
    (found / "fit.png").unlink()
    monkeypatch.setattr(sys, "argv", ["metronome", "report", str(found)])
    with pytest.raises(SystemExit):
        main()
    assert {path.name: path.read_bytes() for path in found.iterdir()} == files


def test_windows_that_fill_are_no_pool_that_fills(fit: Fit, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    with path.open("wb") as file:
        write_line(file, Header(kind="trace", monotonic_zero=0.0, wall_zero=0.0))
        for n in range(20):
            tick = TickRecord(tick=n, due=n, start=n, done=n + 0.1, sessions=4, kv_total=1000, cap=8)
            tick.kv_leased, tick.kv_reserved = 10 + 10 * n, 400
            write_line(file, tick)
    code, out, _ = fit(path, "--json", "--fail-under", "1h")
    told = json.loads(out)
    assert code == 0
    assert (told["shape"], told["bounded"], told["t_sat"]) == ("plateau", True, None)
    assert told["plateau"]["level"]["estimate"] == 0.4
    assert told["plateau"]["ceiling"] == 10  # 1,000 blocks by 100 a call
    assert told["verdict"].startswith("The pool levels off at 40.0 % (20.0 to 40.0) and does not fill")


@pytest.mark.parametrize(
    ("bounded", "binds", "said"),
    [
        (None, "memory", "3 of 3 pools are full or will be, if calls have no bound."),
        (False, "memory", "3 of 3 pools are full or will be."),
        (True, None, "None of 3 pools will be full."),
    ],
)
def test_a_load_whose_calls_said_whether_they_have_a_bound_is_told_for_these_calls(
    fit: Fit, tmp_path: Path, bounded: bool | None, binds: str | None, said: str
) -> None:
    for name in "abc":
        with (tmp_path / f"{name}.jsonl").open("wb") as file:
            write_line(file, Header(kind="trace", monotonic_zero=0.0, wall_zero=0.0))
            for n in range(20):
                tick = TickRecord(tick=n, due=n, start=n, done=n + 0.1, sessions=4, kv_total=1000)
                tick.kv_leased, tick.bounded = 10 + 10 * n, bounded
                write_line(file, tick)
    code, out, _ = fit(tmp_path / "*.jsonl")
    assert code == 0
    assert said in " ".join(out.split())
    assert ("memory, if" in out) == (bounded is None)
    told = json.loads(fit(tmp_path / "a.jsonl", "--json")[1])
    assert (told["bounded"], told["limit"]["binds"]) == (bounded, binds)
    assert (told["t_sat"] is None) == bool(bounded)


def test_a_pool_that_will_be_full_too_soon_is_exit_code_3(fit: Fit, tmp_path: Path) -> None:
    path = csv(tmp_path / "ramp.csv", 0.5)
    assert fit(path, "--fail-under", "20s")[0] == 0
    assert fit(path, "--fail-under", "10m")[0] == 3


def test_what_cannot_be_fitted_beside_what_can_is_told_and_exit_code_2(fit: Fit, tmp_path: Path) -> None:
    flat = tmp_path / "flat.csv"
    flat.write_text("t_s,kv_occupancy\n" + "".join(f"{t},0\n" for t in range(30)))
    code, out, err = fit(csv(tmp_path / "ramp.csv", 0.5), flat, "--json")
    good, bad = json.loads(out)
    assert code == 2
    assert good["t_sat"]
    assert bad["t_sat"] is None
    assert str(flat) in bad["error"]
    assert str(flat) in err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("t_s,kv_occupancy\n" + "".join(f"{t},0\n" for t in range(30)), "nothing is held"),
        ("t_s,kv_occupancy\n0,0.1\n1,0.2\n", "at least 5 rows"),
        ("t_s,kv_occupancy\n" + "".join(f"{t},{t / 50}\n" for t in range(8)), "rises in 7 rows only"),
        ("t_s,kv_occupancy\n" + "".join(f"{t},{t}\n" for t in range(30)), "row 3 = 2.0: give shares"),
        ("t_s,kv_occupancy\n" + "".join(f"{-t},{t / 50}\n" for t in range(30)), "time goes back"),
        ("t_s,kv_occupancy\n" + "".join(f"{t},nan\n" for t in range(30)), "row 1 = nan"),
    ],
)
def test_bad_input_is_one_line_without_a_number_that_looks_like_an_answer(
    fit: Fit, tmp_path: Path, text: str, said: str
) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    code, out, err = fit(path)
    assert (code, out) == (2, "")
    assert said in err
    assert str(path) in err
    assert err.count("\n") == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "metronome: trace: give traces, or a live server"),
        ((PUBLISHED, "--metrics-url", "http://127.0.0.1:1"), "not both"),
        ((PUBLISHED, "--watch"), "--metrics-url"),
        (("--metrics-url", "http://127.0.0.1:1", "--watch", "--at", "0.5"), "leave it out with --watch"),
        (("--metrics-url", "file:///etc/hostname"), "use an address"),
        ((PUBLISHED, "--session-length", "-3s"), "'-3s' is out of range: use 1ms to 720h"),
        ((PUBLISHED, "--fail-under", "1e308s"), "'1e308s' is out of range: use 1ms to 720h"),
        (("--metrics-url", "http://127.0.0.1:1", "--for", "721h"), "'721h' is out of range"),
        (("--metrics-url", "http://127.0.0.1:1", "--every", "1e-300s"), "use 100ms to 1h"),
        (
            ("--metrics-url", "http://127.0.0.1:1", "--for", "6h"),
            "for / every = '21,600 readings': use a longer",
        ),
        (
            ("--metrics-url", "http://127.0.0.1:1", "--watch", "--for", "1m"),
            "for = 60.0: leave it out with --watch",
        ),
        ((PUBLISHED, "--for", "1m"), "for = 60.0: it is for a live server"),
        ((PUBLISHED, "--every", "1s"), "every = 1.0: it is for a live server"),
        ((PUBLISHED, "--engine", "0"), "engine = '0': it is for a live server"),
        ((PUBLISHED, "--at", "1.5"), "--at"),
        ((PUBLISHED, "--at", "0.9999"), "--at"),
        (("nothing-of-this-name",), "no file, and no run folder"),
    ],
)
def test_wrong_use_is_exit_code_2(fit: Fit, options: tuple[object, ...], said: str) -> None:
    code, out, err = fit(*options)
    assert (code, out) == (2, "")
    assert said in err


# ---- Live servers, in virtual time ----


class Ended(VirtualClock):
    """A clock of a user who presses Ctrl-C after so many seconds."""

    end = 1e9

    def wait_until(self, due: float) -> None:
        super().wait_until(due)
        if self.now() > self.end:
            raise KeyboardInterrupt


@pytest.fixture
def until(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Time that costs none, up to Ctrl-C."""

    def end(seconds: float) -> None:
        monkeypatch.setattr(clock, "SystemClock", type("Until", (Ended,), {"end": seconds}))

    end(1e9)
    return end


def filling(count: int, begin: float = 0.1) -> Sequence[Page]:
    """A server whose pool gains half a hundredth a second."""
    return [
        recorded("vllm", kv_cache_usage_perc=round(begin + 0.005 * n, 4), generation_tokens_total=9 * n)
        for n in range(count)
    ]


def assert_foretold(told: dict[str, Any], full_s: float) -> None:
    """A straight line is full when the baseline says; the forecast expects calls to go, so it is later."""
    assert told["baseline"] == pytest.approx(full_s, rel=0.005)
    assert full_s < told["t_sat"]["estimate"] < 1.05 * full_s
    assert told["t_sat"]["low"] < full_s < told["t_sat"]["high"]


@pytest.mark.usefixtures("until")
def test_a_live_server_is_read_for_a_time_and_forecast(fit: Fit, tmp_path: Path) -> None:
    with serving(filling(61)) as url:
        code, out, _ = fit("--metrics-url", url, "--for", "60s", "--json")
    told = json.loads(out)
    assert code == 0
    assert_foretold(told, 180.0)
    assert told["last_s"] == 60.0
    assert told["source"] == url
    assert "-fit-collapse-model-127.0.0.1-" in folder(tmp_path).name


@pytest.mark.usefixtures("until")
def test_a_restart_is_told_and_what_came_before_is_left_out(fit: Fit) -> None:
    with serving([*filling(10, begin=0.7), *filling(51)]) as url:
        code, out, _ = fit("--metrics-url", url, "--json")
    told = json.loads(out)
    assert code == 0
    assert "started anew" in told["notes"][0]
    assert_foretold(told, 190.0)


@pytest.mark.usefixtures("until")
def test_two_engines_want_to_be_told_apart(fit: Fit) -> None:
    with serving([recorded("vllm_two_engines")]) as url:
        code, out, err = fit("--metrics-url", url)
    assert (code, out) == (2, "")
    assert 'engine="0"' in err
    assert "all" in err


@pytest.mark.usefixtures("until")
def test_a_pool_that_stays_empty_is_refused(fit: Fit) -> None:
    with serving([recorded("vllm", kv_cache_usage_perc=0)]) as url:
        code, out, err = fit("--metrics-url", url, "--for", "20s")
    assert (code, out) == (2, "")
    assert "nothing is held" in err
    assert url in err


@pytest.mark.parametrize("watch", [True, False])
def test_a_pool_that_stays_as_it_is_is_told_so_and_is_exit_code_0(
    fit: Fit, until: Callable[[float], None], watch: bool
) -> None:
    until(40.0)
    how = ("--watch",) if watch else ("--for", "30s")
    with serving([recorded("vllm", kv_cache_usage_perc=0.4)]) as url:
        code, out, _ = fit("--metrics-url", url, *how, "--fail-under", "60s")
    assert code == 0
    told = " ".join(out.splitlines()[-1].split()) if watch else " ".join(out.split())
    assert "The pool stays at 40.0 % (40.0 to 40.0) and will not run out while calls go on" in told


def test_a_watched_server_tells_what_was_promised_from_the_first_forecast_on(
    fit: Fit, until: Callable[[float], None]
) -> None:
    """Two calls that wait, then fill their windows, then wait again."""
    until(100.0)
    pages = [
        f"metronome_kv_occupancy_ratio {held / 336}\nmetronome_sessions 2\nmetronome_kv_pool_blocks 336\n"
        "metronome_kv_reserved_blocks 82\n"
        for held in [14] * 20 + list(range(14, 70, 2)) + [70] * 60
    ]
    with serving(pages) as url:
        code, out, _ = fit("--metrics-url", url, "--watch", "--json")
    told = [line for line in map(json.loads, out.splitlines()) if "why" not in line]
    assert code == 0
    assert len(told) > 40
    assert {line["plateau"]["level"]["estimate"] for line in told} == {82 / 336}
    assert {line["limit"]["memory_sessions"] for line in told} == {8}
    assert told[0]["verdict"] == (
        "The pool levels off at 24.4 % (4.2 to 24.4) and does not fill; it holds 8 sessions."
    )


@pytest.mark.usefixtures("until")
@pytest.mark.parametrize("page", ["<html></html>", "node_load1 0.5\n", 404])
def test_what_is_no_metrics_page_is_exit_code_4(fit: Fit, page: Page) -> None:
    with serving([page]) as url:
        code, out, err = fit("--metrics-url", url)
    assert (code, out) == (4, "")
    assert url in err
    assert err.count("\n") == 1


@pytest.mark.usefixtures("until")
def test_too_few_readings_after_a_restart_are_told_with_the_restart(fit: Fit) -> None:
    with serving([*filling(10, begin=0.7), *filling(2)]) as url:
        code, out, err = fit("--metrics-url", url, "--for", "11s")
    assert (code, out) == (2, "")
    assert "started anew" in err
    assert "at least 5 rows" in err


@pytest.mark.usefixtures("until")
def test_watching_ends_with_3_when_the_end_comes_near(fit: Fit, tmp_path: Path) -> None:
    with serving(filling(181)) as url:
        code, out, _ = fit("--metrics-url", url, "--watch", "--fail-under", "60s", "--json")
    lines = [json.loads(line) for line in out.splitlines()]
    assert code == 3
    assert lines[0]["t_sat"] is None
    assert "at least 5 rows" in lines[0]["why"]
    left = [line["left_s"] for line in lines if "left_s" in line]
    assert min(left[:-1]) >= 60 > left[-1]
    assert lines[-1]["last_s"] == pytest.approx(121, abs=8)
    report = json.loads((folder(tmp_path) / "report.json").read_text())
    assert report["held"] is False


def test_watching_is_ended_by_ctrl_c_with_0_and_its_last_forecast(
    fit: Fit, tmp_path: Path, until: Callable[[float], None]
) -> None:
    until(40.0)
    with serving(filling(60)) as url:
        code, out, _ = fit("--metrics-url", url, "--watch", "--fail-under", "10s")
    assert code == 0
    lines = out.splitlines()
    assert lines[0].startswith("no forecast yet: ")
    assert lines[-1].startswith("If calls have no bound, the pool will be full at ")
    report = json.loads((folder(tmp_path) / "report.json").read_text())
    assert report["results"]["verdict"] == lines[-1]


def test_watching_that_ends_before_a_forecast_leaves_no_folder(
    fit: Fit, tmp_path: Path, until: Callable[[float], None]
) -> None:
    until(2.0)
    with serving(filling(60)) as url:
        code, _, _ = fit("--metrics-url", url, "--watch")
    assert code == 0
    assert not (tmp_path / "runs").exists()


@pytest.mark.usefixtures("until")
def test_a_watched_server_that_goes_away_is_exit_code_4(fit: Fit) -> None:
    with serving([*filling(20), 503]) as url:
        code, _, err = fit("--metrics-url", url, "--watch")
    assert code == 4
    assert "503" in err


def test_a_terminal_is_painted_over_with_the_whole_answer(
    fit: Fit, until: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes it for a terminal
    until(20.0)
    with serving(filling(60)) as url:
        code, out, _ = fit("--metrics-url", url, "--watch")
    assert code == 0
    assert "no forecast yet" in out
    assert "\x1b[1A\x1b[2K" in out  # a line up, and wiped
    assert "full at (s), 90 % interval" in out
