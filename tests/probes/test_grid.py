"""A grid's cells: the controls are always there, and no cell is played twice."""

from __future__ import annotations

import pytest

from metronome_cli.errors import ProfileError
from metronome_cli.probes.grid import UNBOUNDED, Bound, Grid, side_by_side
from metronome_cli.profile import load_profile
from metronome_cli.window import Recycle, Unbounded, Window


def test_unbounded_no_sinks_and_recycling_stand_beside_whatever_is_asked() -> None:
    names = [bound.name for bound in Grid([256, 512], ["header"]).bounds]
    assert names == [
        "unbounded", "W=256 S=0", "W=256 S=header", "recycle 256",
        "W=512 S=0", "W=512 S=header", "recycle 512",
    ]  # fmt: skip


def test_without_sinks_the_two_kinds_of_positions_are_one_cell() -> None:
    bounds = Grid([64], [0, 4], ["anchored", "absolute"]).bounds
    assert [bound.name for bound in bounds] == [
        "unbounded", "W=64 S=0", "W=64 S=4", "W=64 S=4 absolute", "recycle 64",
    ]  # fmt: skip


def test_the_control_is_played_first_and_every_cell_has_a_file_of_its_own() -> None:
    cells = Grid([64, 128], [0, 4, "header"], ["anchored", "absolute"], seeds=[0, 1]).cells()
    first = {(cell.kind, cell.seed): cell for cell in reversed(cells)}
    assert {cell.bound for cell in first.values()} == {UNBOUNDED}
    assert len({cell.slug for cell in cells}) == len(cells)


def test_calls_of_one_kind_and_seed_are_played_side_by_side_and_all_else_alone() -> None:
    cells = Grid([64, 128], [0, 4], seeds=[0, 1], kinds=["free", "stream"]).cells()
    groups = side_by_side(cells, most=4)
    assert [cell for group in groups for cell in group] == cells
    assert [len(group) for group in groups] == [4, 3, 4, 3] + [1] * 14
    assert all(len({(cell.kind, cell.seed) for cell in group}) == 1 for group in groups)
    assert all(len(group) == 1 for group in side_by_side(cells, most=1))


def test_what_a_frame_takes_is_measured_for_one_seed_alone() -> None:
    cells = Grid([64], [4], seeds=[0, 1, 2], kinds=["pace"]).cells()
    assert [cell.name for cell in cells] == [
        "pace unbounded seed 0", "pace W=64 S=0 seed 0", "pace W=64 S=4 seed 0", "pace recycle 64 seed 0",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("bound", "policy"),
    [
        (UNBOUNDED, Unbounded()),
        (Bound("window", 300, 4), Window(300, 4)),
        (Bound("window", 300, "header"), Window(300, 20)),
        (Bound("recycle", 300), Recycle(300)),
    ],
)
def test_a_bound_becomes_the_policy_that_it_names(bound: Bound, policy: object) -> None:
    assert load_profile("laptop").on(bound.terms).policy(20) == policy


@pytest.mark.parametrize(
    ("windows", "sinks", "field"), [([0], [0], "windows"), ([64], [65], "sinks"), ([], [0], "windows")]
)
def test_what_makes_no_grid_is_named(windows: list[int], sinks: list[int], field: str) -> None:
    with pytest.raises(ProfileError, match=f"^{field} = "):
        Grid(windows, sinks)
