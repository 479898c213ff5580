"""A run folder can be drawn again from its files, any time, and looks as it did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from metronome_cli.errors import FieldError
from metronome_cli.reporting.plots import draw_points
from metronome_cli.reporting.summary import redraw


@pytest.mark.parametrize("command", ["load", "demo", "find-n"])
def test_a_run_is_drawn_as_a_summary_and_a_picture(run_of: Any, command: str) -> None:
    folder, _ = run_of(command)
    assert [path.name for path in redraw(folder)] == ["summary.md", f"{command}.png"]
    picture = imread(folder / f"{command}.png")
    assert min(picture.shape[:2]) > 400
    assert picture[..., :3].std() > 0.05  # something is drawn on it
    summary = (folder / "summary.md").read_text()
    assert f"({command}.png)" in summary
    assert "seed 7" in summary
    assert "a note" in summary


def test_drawing_a_run_again_changes_nothing(run_of: Any) -> None:
    folder, _ = run_of("demo")
    first = {path: path.read_bytes() for path in redraw(folder)}
    assert {path: path.read_bytes() for path in redraw(folder)} == first


def test_each_point_of_a_search_is_in_its_picture(run_of: Any) -> None:
    folder, report = run_of("find-n")
    redraw(folder)
    both = (folder / "find-n.png").read_bytes()
    report.results["points"].pop()
    report.save(folder)
    redraw(folder)
    assert (folder / "find-n.png").read_bytes() != both


def test_the_picture_of_a_search_draws_the_number_that_its_title_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: kept.append(figure))
    few = {"p50": 1.2, "p99": None, "max": 2.721, "n": 14}
    many = {"p50": 1.2, "p99": 1.75, "max": 9.0, "n": 200}
    point = {"n": 3, "held": False, "first_s": few, "last_s": few, "after_speech_s": None}
    other = point | {"n": 9, "first_s": many, "last_s": many}
    for points in ([point], [point, other]):
        draw_points(Path("unsaved.png"), "N = 2", points, 2.0)
    one, both = (
        {line.get_label(): np.asarray(line.get_ydata()).tolist() for line in it.axes[0].lines} for it in kept
    )
    assert one["last token, max"] == [2.721]
    assert both["last token, p99, or max of fewer than 100"] == [2.721, 1.75]


def test_both_arms_and_both_moments_are_in_the_picture(run_of: Any) -> None:
    folder, report = run_of("demo")
    redraw(folder)
    whole = (folder / "demo.png").read_bytes()
    report.results["moment"] |= {"measured_s": None, "predicted_s": None, "line": None}
    report.save(folder)
    redraw(folder)
    without_moment = (folder / "demo.png").read_bytes()
    del report.results["arms"]["window"]
    report.save(folder)
    redraw(folder)
    assert len({whole, without_moment, (folder / "demo.png").read_bytes()}) == 3


def test_a_run_without_records_still_has_its_summary(run_of: Any) -> None:
    folder, _ = run_of("load")
    (folder / "trace.jsonl").unlink()
    assert [path.name for path in redraw(folder)] == ["summary.md"]
    assert "![" not in (folder / "summary.md").read_text()


def test_a_verdict_stands_before_every_figure(run_of: Any) -> None:
    folder, report = run_of("demo")
    redraw(folder)
    text = (folder / "summary.md").read_text()
    assert text.index(report.results["verdict"]) < text.index("##")


def test_a_folder_that_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(FieldError, match=str(tmp_path)):
        redraw(tmp_path)
