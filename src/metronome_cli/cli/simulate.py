"""`metronome simulate`: a fleet of devices under a day's calls, in seconds.

Knows:   the command, where calls and costs come from, and its run folder.
Ignores: how a device is simulated (runtime/simulator.py) and how a cost was fitted.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .load import keep
from .load_options import length
from .report import show
from .times import LONGEST, RANGE, any_time

if TYPE_CHECKING:
    from ..load.lengths import Length
    from ..profile import Profile
    from ..runtime.cost import Cost
    from ..runtime.device import Load
    from ..runtime.simulator import Call, Simulated

COMMAND = "simulate"
_HEARD_PER_S = 3.0  # tokens, of spoken English
_ASSUMED = 0.75  # of the target, taken by a tick of max_sessions calls; of fewer, in proportion
_MOST_SIGMA = 5.0
_MOST_LIVE = 10_000  # on a device
_MOST_TICKS = 20_000_000  # of all devices


def _length(text: str) -> Length:
    found = length(text)
    longest_s, spread = (found.a, found.b) if found.kind == "lognormal" else (max(found.a, found.b), 0.0)
    any_time(f"{longest_s}s")
    if spread > _MOST_SIGMA:
        raise typer.BadParameter(f"{text!r}: use a sigma of at most {_MOST_SIGMA:g}")
    return found


Devices = Annotated[
    int, typer.Option(min=1, max=10_000, help="Alike, each with a pool and a beat of its own.")
]
Calls = Annotated[int, typer.Option(min=1, max=1_000_000, help="Offered in the time, a Poisson process.")]
Duration = Annotated[float, typer.Option(parser=any_time, metavar="TIME", help=f"Of virtual time, {RANGE}.")]
CallLength = Annotated[
    Any,
    typer.Option(
        parser=_length,
        metavar="LENGTH",
        help="How long a call lasts: 60s, exp:60s (mean), lognormal:60s:0.5 (median, sigma) or "
        f"uniform:30s:90s. {LONGEST} and sigma {_MOST_SIGMA:g} are the most.",
    ),
]
ProfileName = Annotated[str, typer.Option("--profile", help="A built-in profile, or a path ending in .toml.")]
Admit = Annotated[str | None, typer.Option(help="What caps live calls: fixed, aimd, gradient or forecast.")]
MaxSessions = Annotated[
    int | None,
    typer.Option(min=1, max=_MOST_LIVE, help="Most calls of a device at a time, whatever caps them."),
]
PolicyName = Annotated[str | None, typer.Option("--policy", help="Retention: window, unbounded or recycle.")]
Blocks = Annotated[int | None, typer.Option(min=1, max=10_000_000, help="Blocks in the KV pool of a device.")]
CostFile = Annotated[
    Path | None,
    typer.Option(
        "--cost", metavar="FILE", help="What `metronome fit capacity --json` printed, for real ticks."
    ),
]
Seed = Annotated[int | None, typer.Option(min=0, help="Of arrivals, lengths and the ticks' noise.")]
Record = Annotated[bool, typer.Option(help="Write every device's ticks to the run folder, an arm each.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the report as one JSON document.")]
Out = Annotated[Path, typer.Option(help="Where the run folder is made.")]


def simulate(
    *,
    devices: Devices = 100,
    calls: Calls = 10_000,
    duration: Duration = "1h",  # type: ignore[assignment]  # typer parses the default as it parses input
    call_length: CallLength = "lognormal:3m:0.5",
    profile: ProfileName = "laptop",
    admit: Admit = None,
    max_sessions: MaxSessions = None,
    policy: PolicyName = None,
    blocks: Blocks = None,
    cost: CostFile = None,
    seed: Seed = None,
    record: Record = False,
    as_json: AsJson = False,
    out: Out = Path("runs"),
) -> None:
    """Offer calls to a fleet in virtual time: who gets in, how full pools become, which ticks are late.

    Beats, admission and accounts of blocks are those of `metronome serve`; a tick takes what --cost says.
    Each call is offered to the device with the fewest. Exit code 3 when a call went without a block, or when
    more ticks were late than the profile's percentile allows.

    \b
    Examples:
      metronome simulate --devices 100 --calls 10000 --duration 1h --admit forecast
      metronome simulate --devices 4 --calls 300 --duration 20m --cost cost.json --json
      metronome simulate --policy unbounded --call-length exp:10m --seed 7
    """
    from msgspec import to_builtins

    from ..clock import SystemClock, VirtualClock
    from ..profile import load_profile
    from ..report import new_report, run_folder
    from ..runtime.recorder import Recorder
    from ..runtime.simulator import Fleet

    clock = SystemClock()
    asked = {"admission.admit": admit, "admission.max_sessions": max_sessions, "window.policy": policy}
    asked |= {"pool.blocks": blocks, "run.seed": seed}
    checked = load_profile(profile, {name: value for name, value in asked.items() if value is not None})
    _check(checked, devices, duration)
    report = new_report(COMMAND, checked, clock)
    report.notes, costs, load = _costs(checked, cost)
    offered = _calls(calls, duration, call_length, checked.run.seed)
    fleet = Fleet(checked, costs, load, devices)
    folder = run_folder(out, COMMAND, checked.name, clock)
    recorder = Recorder(folder if record else None, VirtualClock())
    told = fleet.run(offered, duration, recorder)
    recorder.close()
    report.results = _results(told, checked, devices) | {"cost": to_builtins(costs)}
    report.held = not told.stalled and told.late <= told.ticks * (1 - checked.admission.percentile / 100)
    failure = keep(report, folder)
    show(report, as_json)
    if failure:
        raise failure
    raise typer.Exit(0 if report.held else 3)


def _check(profile: Profile, devices: int, duration_s: float) -> None:
    """A simulation that would take days is refused before it begins."""
    from ..errors import ProfileError

    if (most := profile.admission.max_sessions) > _MOST_LIVE:
        raise ProfileError("admission.max_sessions", most, f"use {_MOST_LIVE:,} or fewer to simulate")
    frame_s = profile.beat.frame_s
    longest_s = _MOST_TICKS * frame_s / devices
    if duration_s > longest_s:
        beats = f"{devices:,} devices have more than {_MOST_TICKS:,} beats of {frame_s:g} s in it"
        cure = f"use {longest_s:.0f} s at most, or fewer devices"
        raise ProfileError("duration", duration_s, f"{beats}: {cure}")


def _calls(count: int, duration_s: float, length: Length, seed: int) -> list[Call]:
    """Callers as `metronome load --offer` makes them, of the same seed."""
    from ..load.arrivals import arrival_times, stay
    from ..runtime.simulator import Call

    times = arrival_times("poisson", count / duration_s, count, duration_s, seed)
    return [Call(at, stay(seed, n, length, duration_s, 0.0)[0]) for n, at in enumerate(times)]


def _costs(profile: Profile, file: Path | None) -> tuple[list[str], Cost, Load]:
    """What a tick costs and what calls bring to it, as measured or, as a note then says, assumed."""
    from ..runtime.cost import HELD_OUT, Cost, read_fitted
    from ..runtime.device import Load

    header = len(profile.model.header.split())
    if file is None:
        beat, asked = profile.beat, profile.admission
        each_s = _ASSUMED * asked.target_share * beat.frame_s / asked.max_sessions
        note = (
            f"no --cost: a tick of max_sessions calls is assumed to take {100 * _ASSUMED:g} % of the target"
        )
        heard = min(_HEARD_PER_S * beat.frame_s, beat.prefill_tokens)
        return [note], Cost(0.0, each_s), Load(heard, beat.tau, header)
    fitted = read_fitted(file)
    each, missed = fitted.per_session, []
    if (off := fitted.worst_error) > HELD_OUT:
        missed.append(
            f"the fit in {file} missed its limit: an N told from the others was off by {100 * off:.1f} %, "
            f"where {100 * HELD_OUT:g} % are allowed; what follows is no surer than that"
        )
    return missed, fitted.cost, Load(each.tokens_in, each.tokens_out, header)


def _results(told: Simulated, profile: Profile, devices: int) -> dict[str, Any]:
    from dataclasses import asdict

    asked = profile.admission
    times = [at for at in told.t_sat if at is not None]
    results = asdict(told) | {
        "devices": devices,
        "t_sat_by_device": told.t_sat,
        "t_sat": min(times, default=None),
        "saturated": len(times),
        "admitted_share": told.admitted / told.offered if told.offered else 0.0,
        "late_share": told.late / told.ticks if told.ticks else 0.0,
        "target_s": asked.target_share * profile.beat.frame_s,
    }
    return results | {"verdict": _verdict(results)}


def _verdict(results: dict[str, Any]) -> str:
    full, devices = results["saturated"], results["devices"]
    pools = f"{full} of {devices} pools ran out" if full else "no pool ran out"
    return (
        f"{results['admitted']:,} of {results['offered']:,} calls admitted, {results['peak_live']:,} at a "
        f"time on {devices} devices; {pools}; {100 * results['late_share']:.2f} % of ticks late."
    )
