"""How far the forecast of a filling pool is off, and how often its interval holds: simulated traces.

Run:  python -m evals.predict.simulated               (four kinds of 500 traces: 4 minutes on a core)
      python -m evals.predict.simulated --calibrate --traces 1000   (the constants of fit/forecast.py)
      python -m evals.predict.simulated --show        (the tables again)
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from metronome_cli.clock import SystemClock
from metronome_cli.errors import FieldError
from metronome_cli.fit.collapse import before, fit_line
from metronome_cli.fit.forecast import FREEDOM, forecast, spread, spread_of_few
from metronome_cli.report import Report, new_report, write_whole
from metronome_cli.reporting.tables import Table

from .traces import Trace, simulated

RESULTS = Path(__file__).parent / "results"
CALIBRATED_ON, JUDGED_ON = 20_000, 60_000  # first seeds
FILLS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
JUDGED = (0.3, 0.5, 0.7)
BANDS = ((4, 15), (16, 63), (64, 256))  # calls
LEVELS = (0.5, 0.9)


@dataclass(frozen=True)
class Guess:
    """One forecast, and what became of it. Times on the axis of the trace, in seconds."""

    fill: float
    calls: int
    t_sat: float
    now: float
    seen: float  # occupancy at the last row
    estimate: float
    baseline: (
        float | None
    )  # the 10 to 80 % line of the same rows; from the first held row where those are few
    inside: tuple[bool, ...]  # by level

    @property
    def error(self) -> float:
        """As a share of the time from the trace's beginning."""
        return self.estimate / self.t_sat - 1


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--traces", type=int, default=500)
    parser.add_argument("--calibrate", action="store_true", help="print the constants; nothing is written")
    parser.add_argument("--show", action="store_true", help="only show what was measured")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    path = options.out / "simulated.json"
    if options.calibrate:
        calibrate(options.traces)
        return
    if not options.show:
        options.out.mkdir(exist_ok=True)
        report = measure(options.traces)
        write_whole(path, report.model_dump_json(indent=2) + "\n")
    for table in tables(json.loads(path.read_text("utf-8"))["results"]):
        print(table.markdown())


def calibrate(traces: int) -> None:
    """Middle and width by fill: the median, and what puts 90 % of the calibration set inside."""
    guesses = [
        of
        for trace in _traces(CALIBRATED_ON, traces)
        for fill in FILLS
        if (of := guess(trace, fill)) is not None
    ]
    rows = [_spread([of for of in guesses if of.fill == fill]) for fill in FILLS]
    print(f"_FILLS = {FILLS}")
    print(f"_MIDDLE = {tuple(round(middle, 3) for middle, _ in rows)}")
    print(f"_WIDTH = {tuple(round(width, 3) for _, width in rows)}")


def _spread(guesses: Sequence[Guess]) -> tuple[float, float]:
    off = np.array([np.log((of.t_sat - of.now) / (of.estimate - of.now)) for of in guesses])
    # The forecast has been moved by the middle that is in use.
    off += [spread(of.seen, of.calls)[0] for of in guesses]
    middle = float(np.median(off))
    wide = np.abs(off - middle) / [spread_of_few(of.calls) for of in guesses]
    return middle, float(np.quantile(wide, 0.9) / stats.t.ppf(0.95, FREEDOM))


def measure(traces: int) -> Report:
    """The set that is judged, the same without sessions, and two harder ones."""
    report = new_report("eval-predict-simulated", None, SystemClock(), JUDGED_ON)
    kinds = {
        "as asked": _traces(JUDGED_ON, traces),
        "without sessions": _traces(JUDGED_ON, traces, blind=True),
        "4 to 16 calls": _traces(JUDGED_ON, traces, calls=(4, 16)),
        "joins and leaves uneven": _traces(JUDGED_ON, traces, uneven=True),
    }
    found = {kind: judge(of) for kind, of in kinds.items()}
    report.results = {"traces": traces, "kinds": found, "shapes": shapes(traces)}
    report.results["limits"] = list(limits(found["as asked"]["fills"]))
    report.held = all(limit["held"] for limit in report.results["limits"])
    return report


def _traces(first: int, count: int, *, blind: bool = False, **kind: Any) -> Iterator[Trace]:
    for seed in range(first, first + count):
        trace = simulated(seed, **kind)
        yield replace(trace, series=replace(trace.series, sessions=None)) if blind else trace


def guess(trace: Trace, fill: float) -> Guess | None:
    """The forecast from the rows before `fill`; None where there is none."""
    try:
        found = [forecast(trace.series, until=fill, level=level) for level in LEVELS]
    except FieldError:
        return None
    of = found[0]
    if of.t_sat is None:
        return None
    inside = tuple(f.t_sat.low <= trace.t_sat <= f.t_sat.high for f in found if f.t_sat is not None)
    seen = float(trace.series.occupancy[trace.series.occupancy >= fill][0])
    line = of.baseline if of.baseline is not None else _line(trace, of.last_s)
    return Guess(fill, trace.calls, trace.t_sat, of.last_s, seen, of.t_sat.estimate, line, inside)


def _line(trace: Trace, until_s: float) -> float | None:
    try:
        return fit_line(*before(trace.series.t_s, trace.series.occupancy, until_s)).t_sat
    except FieldError:
        return None


def judge(traces: Iterator[Trace]) -> dict[str, Any]:
    """Errors and coverage by fill, and at half fill by the number of calls."""
    found = [(fill, guess(trace, fill)) for trace in traces for fill in FILLS]
    by_fill = {fill: [of for at, of in found if at == fill] for fill in FILLS}
    half = [of for of in by_fill[0.5] if of is not None]
    bands = [
        _told([of for of in half if low <= of.calls <= high]) | {"calls": [low, high]} for low, high in BANDS
    ]
    return {"fills": [_told(of) | {"fill": fill} for fill, of in by_fill.items()], "calls": bands}


def _told(guesses: Sequence[Guess | None]) -> dict[str, Any]:
    told = [of for of in guesses if of is not None]
    if not told:
        return {"traces": len(guesses), "forecasts": 0}
    errors = np.abs([of.error for of in told])
    lines = np.abs([of.baseline / of.t_sat - 1 for of in told if of.baseline is not None])
    held = np.array([of.inside for of in told]).mean(0)
    return {
        "traces": len(guesses),
        "forecasts": len(told),
        "error_p50": float(np.median(errors)),
        "error_p90": float(np.quantile(errors, 0.9)),
        "bias": float(np.median([of.error for of in told])),
        "line_p50": float(np.median(lines)) if len(lines) else None,
        "line_p90": float(np.quantile(lines, 0.9)) if len(lines) else None,
        "inside": {f"{level:g}": float(share) for level, share in zip(LEVELS, held, strict=True)},
    }


def shapes(traces: int) -> dict[str, Any]:
    """How often a ramp is called one while it fills, and a plateau at the end of a bounded trace.

    By how long the plateau has lasted, in the time that it took to reach it.
    """
    ramps = [_shape(trace, fill) for trace in _traces(JUDGED_ON, traces) for fill in JUDGED]
    bounded = [
        ((float(trace.series.t_s[-1]) - trace.offset) / trace.window_s - 1, _shape(trace, None))
        for trace in _traces(JUDGED_ON, traces, bounded=True)
    ]
    return {
        "ramps": _counts(ramps),
        "plateaus": [
            _counts([shape for length, shape in bounded if low <= length < high]) | {"lasted": [low, high]}
            for low, high in ((1.0, 2.0), (2.0, 4.0), (4.0, 7.0))
        ],
    }


def _shape(trace: Trace, fill: float | None) -> str:
    try:
        return forecast(trace.series, until=fill).shape
    except FieldError:
        return "refused"


def _counts(shapes: Sequence[str]) -> dict[str, Any]:
    return {name: shapes.count(name) for name in sorted(set(shapes))} | {"of": len(shapes)}


def limits(fills: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """What was asked for."""
    for row in fills:
        if row["fill"] not in JUDGED:
            continue
        held = row["inside"]["0.9"]
        yield {
            "name": f"90 % intervals at {row['fill']:.0%} fill hold the truth",
            "limit": "85 to 95 %",
            "measured": held,
            "held": 0.85 <= held <= 0.95,
        }
        if row["fill"] == 0.5:
            off = row["error_p50"]
            name = "median error of t_sat at 50 % fill"
            yield {"name": name, "limit": "at most 3 %", "measured": off, "held": off <= 0.03}


def tables(results: Mapping[str, Any]) -> Iterator[Table]:
    """All of it, for README.md and the terminal."""
    rows = [
        (x["name"], x["limit"], f"{x['measured']:.1%}", "yes" if x["held"] else "NO")
        for x in results["limits"]
    ]
    yield Table("Limits", ("what", "limit", "measured", "held"), tuple(rows))
    columns = (
        "forecasts",
        "error p50",
        "p90",
        "bias",
        "line p50",
        "p90",
        *(f"in {level:.0%}" for level in LEVELS),
    )
    for kind, found in results["kinds"].items():
        body = [(f"{row['fill']:.0%}", *_cells(row)) for row in found["fills"]]
        body += [
            (f"50%, {row['calls'][0]} to {row['calls'][1]} calls", *_cells(row)) for row in found["calls"]
        ]
        yield Table(f"{kind}, {results['traces']} traces", ("fill", *columns), tuple(body))
    yield _shapes_table(results["shapes"])


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    if not row["forecasts"]:
        return (f"0 of {row['traces']}", *("-",) * (5 + len(LEVELS)))
    keys = ("error_p50", "error_p90", "bias", "line_p50", "line_p90")
    shares = ["-" if row[key] is None else f"{row[key]:.1%}" for key in keys]
    return (f"{row['forecasts']} of {row['traces']}", *shares, *(f"{x:.1%}" for x in row["inside"].values()))


def _shapes_table(found: Mapping[str, Any]) -> Table:
    kinds = [("ramp, at 30, 50 and 70 %", found["ramps"])]
    kinds += [
        (f"plateau that lasted {low:g} to {high:g} times its ramp", row)
        for row in found["plateaus"]
        for low, high in [row["lasted"]]
    ]
    named = ("ramp", "plateau", "refused")
    body = [(kind, str(row["of"]), *(str(row.get(name, 0)) for name in named)) for kind, row in kinds]
    return Table("What they are taken for", ("is", "traces", *named), tuple(body))


if __name__ == "__main__":
    main()
