"""Reports as text: the figures are the report's own, and what is missing says so."""

from __future__ import annotations

from typing import Any

from metronome_cli.clock import VirtualClock
from metronome_cli.report import new_report
from metronome_cli.reporting.kinds import tables
from metronome_cli.reporting.tables import Table, arms_table, seconds, share, spread


def rows_of(table: Table) -> dict[str, tuple[str, ...]]:
    return {row[0]: row[1:] for row in table.rows}


def test_a_load_report_names_limits_first_then_the_run_then_its_course(run_of: Any) -> None:
    limits, facts, buckets = tables(run_of("load")[1])
    assert rows_of(limits)["calls refused"] == ("0", "3", "no")
    assert rows_of(limits)["freshness"] == ("2.000", "-", "not measurable")
    assert rows_of(facts)["calls refused"] == ("3 pool_full",)
    assert rows_of(facts)["freshness, last token p50 / p90 / p99 (s)"] == ("0.400 / 0.500 / 0.625",)
    assert rows_of(facts)["cadence (frames delivered / due)"] == ("90.0 % (18 / 20)",)
    assert rows_of(facts)["frames stalled / empty / missing"] == ("2 / 2 / -",)  # of a report that told none
    assert rows_of(buckets)["0-10"] == ("10", "0.400 / 0.625", "0.625", "0", "0", "25 %")


def test_every_frame_that_was_due_and_not_delivered_is_on_a_line(run_of: Any) -> None:
    report = run_of("load")[1]
    report.results["frames"] |= {"due": 38, "delivered": 31, "stalled": 0, "empty": 1, "missing": 6}
    _, facts, _ = tables(report)
    assert rows_of(facts)["frames stalled / empty / missing"] == ("0 / 1 / 6",)


def test_when_frames_were_missing_is_told_where_any_were(run_of: Any) -> None:
    report = run_of("load")[1]
    report.results["buckets"][0]["missing"] = 0
    assert len(tables(report)) == 3
    report.results["buckets"][1]["missing"] = 6
    *_, missing = tables(report)
    assert missing.title == "Missing frames by time (s)"
    assert rows_of(missing) == {"10-20": ("6", "16")}


def test_a_demo_report_puts_both_arms_and_both_moments_side_by_side(run_of: Any) -> None:
    arms, moment, _ = tables(run_of("demo")[1])
    assert rows_of(arms)["0-10"] == ("0.40 / 0.62", "0 %", "25 %") * 2
    assert rows_of(arms)["10-20"] == ("-", "100 %", "100 %", "0.40 / 0.62", "0 %", "25 %")
    assert [row[1] for row in moment.rows] == ["10.0", "12.5", "+25.0 %"]


def test_an_arm_that_ended_early_leaves_its_cells_open(run_of: Any) -> None:
    arms = run_of("demo")[1].results["arms"]
    arms["window"]["buckets"] = arms["window"]["buckets"][:1]
    assert arms_table(arms).rows[1][4:] == ("-",) * 3


def test_a_search_shows_every_n_with_what_held_and_why_not(run_of: Any) -> None:
    points, lost = tables(run_of("find-n")[1])
    assert points.title == "Calls within 2.000 s"
    assert rows_of(points)["4"] == ("yes", "-", "0.400 / 0.625", "0.400 / 0.625", "100.0 %", "6 %")
    assert rows_of(lost) == {"8": ("every call is silent",)}


def test_a_search_without_ticks_shows_the_time_after_speech_instead(run_of: Any) -> None:
    report = run_of("find-n")[1]
    for point in report.results["points"]:
        cuts = {"p50": 0.25, "p99": 0.75, "max": 0.8, "n": 99}
        point |= {"first_s": None, "last_s": None, "after_speech_s": cuts}
    points, _ = tables(report)
    assert points.columns[2:4] == ("turns", "after speech p50 / max")
    assert rows_of(points)["4"][1:3] == ("99", "0.250 / 0.800")


def test_in_place_of_a_p99_of_too_few_values_stands_the_largest_and_how_many_there_were(run_of: Any) -> None:
    report = run_of("load")[1]
    few = {"p50": 0.4, "p90": 0.5, "p99": 0.625, "max": 0.75, "n": 99}
    for found in (report.results, report.results["buckets"][0]):
        found["freshness"] = {"first_s": few, "last_s": few}
    report.results["after_speech_s"] = {**few, "n": 100}
    row = {"name": "p99 (s)", "limit": 2.0, "measured": 0.75, "held": True, "n": 99}
    report.results["limits"] = [row, {**row, "name": "of many", "n": 100}]
    limits, facts, buckets = tables(report)
    assert rows_of(limits) == {
        "p99 (s)": ("2.000", "0.750 (max of 99)", "yes"),
        "of many": ("2.000", "0.750 (p99 of 100)", "yes"),
    }
    first = rows_of(facts)["freshness, first token p50 / p90 / p99 (s)"]
    assert first == ("0.400 / 0.500 / max 0.750, n 99",)
    assert rows_of(facts)["after speech p50 / p90 / p99 (s)"] == ("0.400 / 0.500 / 0.625, n 100",)
    # Where all of a column are of too few, its head says so: the second bucket here has no n and a p99.
    assert rows_of(buckets)["0-10"][1:3] == ("0.400 / max 0.750", "max 0.750")
    report.results["buckets"] = report.results["buckets"][:1]
    *_, buckets = tables(report)
    assert buckets.columns[2:4] == ("first p50 / max", "last max")
    assert rows_of(buckets)["0-10"][1:3] == ("0.400 / 0.750", "0.750")
    assert spread({"p50": 0.4, "p99": 0.6, "n": 99}, ("p50", "p99")) == "0.400 / -"


def test_calls_that_were_dialled_again_are_told_with_what_they_met_and_waited(run_of: Any) -> None:
    report = run_of("load")[1]
    calls = report.results["calls"]
    calls |= {"refusals": {"ramp": 4, "pool_full": 3}, "retry_after_s": 1.0, "redials": 5}
    calls["let_in_late_s"] = {"p50": 2.5, "p90": 8.0, "max": 9.25, "n": 4}
    facts = rows_of(tables(report)[1])
    assert facts["calls refused"] == ("3 pool_full",)
    assert facts["told to come again after, at most (s)"] == ("1",)
    assert facts["dialled again / refusals met"] == ("5 / 4 ramp, 3 pool_full",)
    assert facts["let in late, waited p50 / longest (s)"] == ("4, 2.500 / 9.250",)
    calls["let_in_late_s"] = None
    assert rows_of(tables(report)[1])["let in late, waited p50 / longest (s)"] == ("none",)


def test_what_only_some_runs_have_is_shown_where_it_is(run_of: Any) -> None:
    report = run_of("load")[1]
    rare = {
        "speech given back, of what was sent": ("sound", {"back_s": 9.0, "share": 0.9}, "90.0 %"),
        "words misheard (of words said)": ("wer", {"wer": 0.05, "words": 200}, "5.0 % (200)"),
        "slope against age, 95 % (s per minute)": (
            *("slope", {"s_per_min": 0.01, "low": -0.002, "high": 0.02}),
            "+0.0100 (-0.0020 to +0.0200)",
        ),
        "replies cancelled": ("cancels", {"sent": 3, "went_on": 0, "went_on_s": None}, "3, none went on"),
    }
    for key, found, _ in rare.values():
        report.results[key] = found
    facts = rows_of(tables(report)[1])
    assert {name: facts[name] for name in rare} == {name: (shown,) for name, (_, _, shown) in rare.items()}


def test_calls_that_come_and_go_are_shown_by_age_too(run_of: Any) -> None:
    report = run_of("load")[1]
    assert "By session age (s)" not in [table.title for table in tables(report)]
    report.results["offered"]["call_length"] = "exp:60s"
    report.results["ages"] = [bucket | {"sessions": 2} for bucket in report.results["buckets"]]
    [ages] = [table for table in tables(report) if table.title == "By session age (s)"]
    assert rows_of(ages)["0-10"] == ("2", "10", "0.400 / 0.625", "0.625", "0", "0")


def test_every_row_has_a_cell_for_every_column(run_of: Any) -> None:
    for command in ("load", "demo", "find-n"):
        for table in tables(run_of(command)[1]):
            assert {len(row) for row in table.rows} == {len(table.columns)}


def test_a_report_of_another_command_has_no_tables() -> None:
    assert tables(new_report("serve", None, VirtualClock())) == []


def test_markdown_keeps_cells_apart_whatever_they_hold() -> None:
    text = Table("T", ("a", "b"), (("x|y", "z"),)).markdown()
    assert text == "## T\n\n| a | b |\n| --- | --- |\n| x\\|y | z |\n"


def test_what_was_not_measured_is_a_dash_and_never_a_zero() -> None:
    assert (seconds(None), share(None), spread(None)) == ("-", "-", "-")
    assert (seconds(0.0), share(0.0), share(-0.05, sign="+")) == ("0.000", "0.0 %", "-5.0 %")
