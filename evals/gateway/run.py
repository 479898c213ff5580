"""The gateway with no model behind it: how many paced calls does it take, and what does that cost a tick?

Starts `metronome serve` on a null profile, calls it from processes of callers (callers.py), and searches the
largest number of calls whose packets are taken within 20 ms at p99.

Run:  python -m evals.gateway.run                            (search at a period of 2 s; about 4 minutes)
      python -m evals.gateway.run --period 0.08 --calls 256  (one point)
      python -m evals.gateway.run --gateway-cpus 0 --engine-cpu 1 --caller-cpus 2-15 --processes 8
      python -m evals.gateway.run --gateways 4 --gateway-cpus 0-3 --engine-cpu 4 --processes 8
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from metronome_cli import wire
from metronome_cli.clock import Clock, SystemClock
from metronome_cli.errors import MetronomeError
from metronome_cli.load.search import largest, next_n
from metronome_cli.profile import load_profile
from metronome_cli.report import new_report
from metronome_cli.stats import percentiles

from .callers import PACKET_S, Outcome, Task, Times

HERE = Path(__file__).parent
PROFILES = {2.0: HERE / "null.toml", 0.08: HERE / "null-80ms.toml"}
MOST_LAG_S = 0.02  # p99
MOST_LATE_S = 0.005  # p99 of the callers' own lateness, beyond which a point says nothing about the gateway
WARM_UP_S = 3.0
STEP = 32  # calls; what the search tells apart


@dataclass(frozen=True, slots=True)
class Place:
    """Which cores each process has; None leaves it to the kernel. Gateways have one each, in order."""

    gateways: set[int] | None
    engine: set[int] | None
    callers: set[int] | None


class Server:
    """A running `metronome serve`: its gateways, the first one first, and its engine process."""

    def __init__(self, process: subprocess.Popen[bytes], url: str) -> None:
        self.url = url.replace("http", "ws", 1) + wire.REALTIME_PATH
        self._pages = url
        listed = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
        children = [int(child) for child in listed.split()]
        (self.engine,) = [child for child in children if _runs(child, "engine_process")]
        self.gateways = [process.pid, *(child for child in children if _runs(child, "gateway_process"))]

    def metrics(self) -> dict[str, float]:
        """Every sample of /metrics without labels, and those of event_bytes by direction."""
        with urllib.request.urlopen(f"{self._pages}/metrics", timeout=30) as page:  # noqa: S310
            families = text_string_to_metric_families(page.read().decode())
            samples = [sample for family in families for sample in family.samples]
        return {s.name + "".join(s.labels.values()): s.value for s in samples}


def _runs(process: int, module: str) -> bool:
    return module in Path(f"/proc/{process}/cmdline").read_text()


@contextmanager
def serving(profile: Path, gateways: int, place: Place) -> Iterator[Server]:
    """The server, ready for calls, its processes on their cores."""
    command = [sys.executable, "-m", "metronome_cli", "serve", "--profile", str(profile)]
    command += ["--gateways", str(gateways)]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [*command, "--json", "--no-live", "--no-record"], stdout=subprocess.PIPE, stderr=log
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                log.seek(0)
                raise MetronomeError(f"the server did not start:\n{log.read().decode()}")
            server = Server(process, json.loads(line)["url"])
            _pin(server.engine, place.engine)
            cores = sorted(place.gateways or ())
            for number, gateway in enumerate(server.gateways):
                _pin(gateway, {cores[number % len(cores)]} if cores else None)
            yield server
        finally:
            process.terminate()
            process.wait(30)


def _pin(process: int, cores: set[int] | None) -> None:
    """Every thread of a process onto `cores`."""
    for thread in os.listdir(f"/proc/{process}/task") if cores else ():
        os.sched_setaffinity(int(thread), cores or ())


def cpu_s(process: int) -> float:
    """CPU seconds that a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Bench:
    """Points of one server."""

    def __init__(self, server: Server, options: argparse.Namespace, place: Place, clock: Clock) -> None:
        self._server = server
        self._options = options
        self._place = place
        self._clock = clock

    def point(self, calls: int, packets: bool = True) -> dict[str, Any]:
        """Fresh calls for `seconds`, and what was seen of them."""
        processes = min(self._options.processes, calls)
        tasks = [
            Task(
                url=self._server.url,
                calls=calls // processes + (number < calls % processes),
                probes_per_s=self._options.probes_per_s / processes,
                seed=self._options.seed + number,
                ticks=number == 0,
                packets=packets,
            )
            for number in range(processes)
        ]
        callers = [self._start(task) for task in tasks]
        try:
            for caller in callers:
                if _said(caller) != b"ready\n":
                    raise MetronomeError(f"{calls} calls could not all be opened")
            found = self._measure(callers, [PACKET_S / task.calls for task in tasks])
        finally:
            for caller in callers:
                caller.kill()
                caller.wait()
        return {"calls": calls} | found

    def _start(self, task: Task) -> subprocess.Popen[bytes]:
        caller = subprocess.Popen(
            [sys.executable, "-m", "evals.gateway.callers"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        if self._place.callers:
            os.sched_setaffinity(caller.pid, self._place.callers)
        _tell(caller, task)
        return caller

    def _measure(self, callers: list[subprocess.Popen[bytes]], gaps: list[float]) -> dict[str, Any]:
        start = self._clock.now() + 0.5
        measure, stop = start + WARM_UP_S, start + WARM_UP_S + self._options.seconds
        for number, (caller, gap) in enumerate(zip(callers, gaps, strict=True)):
            _tell(caller, Times(start + gap * number / len(callers), measure, stop))
        self._clock.wait_until(measure)
        before = self._counts()
        self._clock.wait_until(stop)
        spent = {name: value - before[name] for name, value in self._counts().items()}
        outcomes = [msgspec.json.decode(caller.communicate()[0], type=Outcome) for caller in callers]
        return _verdict(outcomes, spent)

    def _counts(self) -> dict[str, float]:
        return {
            "at": self._clock.now(),
            **{f"gateway {n}": cpu_s(process) for n, process in enumerate(self._server.gateways, 1)},
            "engine": cpu_s(self._server.engine),
            **self._server.metrics(),
        }


def _tell(caller: subprocess.Popen[bytes], what: Task | Times) -> None:
    assert caller.stdin is not None
    caller.stdin.write(msgspec.json.encode(what) + b"\n")
    caller.stdin.flush()


def _said(caller: subprocess.Popen[bytes]) -> bytes:
    assert caller.stdout is not None
    return caller.stdout.readline()


def _verdict(outcomes: list[Outcome], spent: Mapping[str, float]) -> dict[str, Any]:
    """One point's figures; times in milliseconds."""
    seconds = spent["at"]
    lags = [lag for outcome in outcomes for lag in outcome.lags]
    late = [value for outcome in outcomes for value in outcome.late]
    ticks = [value for outcome in outcomes for value in outcome.ticks]
    lag, lateness = _ms(lags), _ms(late)
    bad = {name: sum(getattr(o, name) for o in outcomes) for name in ("lost", "unanswered")}
    errors = [error for outcome in outcomes for error in outcome.errors]
    void = not lateness or lateness["p99"] > MOST_LATE_S * 1000
    held = bool(lag) and lag["p99"] < MOST_LAG_S * 1000 and not errors and not any(bad.values())
    return {
        "held": held,
        "void": void,
        "packets_per_s": round(sum(outcome.sent for outcome in outcomes) / seconds),
        "lag_ms": lag,
        "probes": len(lags),
        "callers_late_ms": lateness,
        "callers_cpu_share": [round(outcome.cpu_share, 2) for outcome in outcomes],
        "gateway_cpu_shares": [
            round(value / seconds, 3) for name, value in spent.items() if name.startswith("gateway ")
        ],
        "engine_cpu_share": round(spent["engine"] / seconds, 3),
        "tick_due_to_end_ms": _ms(ticks),
        "tick_late_ms_mean": _mean_ms(spent, "metronome_tick_start_lateness_seconds"),
        "tick_ms_mean": _mean_ms(spent, "metronome_tick_seconds"),
        "skipped_beats": int(spent["metronome_skipped_beats_total"]),
        "errors": errors[:3],
        **bad,
    }


def _ms(values: list[float]) -> dict[str, float]:
    found = percentiles(values, (50, 90, 99, 100)) or {}
    return {name.replace("p100", "max"): round(value * 1000, 2) for name, value in found.items()}


def _mean_ms(spent: Mapping[str, float], name: str) -> float | None:
    count = spent[f"{name}_count"]
    return round(spent[f"{name}_sum"] / count * 1000, 3) if count else None


def search(bench: Bench, first: int, most: int) -> list[dict[str, Any]]:
    """Points until the largest number of calls that holds is known to within STEP."""
    points: list[dict[str, Any]] = []
    tried: dict[int, bool] = {}
    while (steps := next_n(tried, max(1, first // STEP), most // STEP)) is not None:
        point = bench.point(steps * STEP)
        _show(point)
        points.append(point)
        tried[steps] = point["held"] and not point["void"]
    return points


def _show(point: dict[str, Any]) -> None:
    names = ("calls", "packets_per_s", "lag_ms", "callers_late_ms", "callers_cpu_share", "gateway_cpu_shares")
    more = ("engine_cpu_share", "tick_due_to_end_ms", "tick_ms_mean", "tick_late_ms_mean", "skipped_beats")
    bad = ("held", "void", "lost", "unanswered", "errors")
    print(" ".join(f"{name}={point[name]}" for name in (*names, *more, *bad)), flush=True)


def _cores(text: str) -> set[int]:
    """Cores as "0,2-5"."""
    ends = [part.split("-") for part in text.split(",")]
    return {core for part in ends for core in range(int(part[0]), int(part[-1]) + 1)}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--period", type=float, choices=sorted(PROFILES), default=2.0)
    parser.add_argument("--calls", type=int, nargs="*", help="these points, instead of a search")
    parser.add_argument("--first", type=int, default=256, help="calls that the search begins with")
    parser.add_argument("--most", type=int, default=4096)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each point, after its warm-up")
    parser.add_argument("--processes", type=int, default=1, help="of callers")
    parser.add_argument("--probes-per-s", type=float, default=200.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--gateways", type=int, default=1, help="processes on one port")
    parser.add_argument("--gateway-cpus", type=_cores, help="one for each gateway")
    parser.add_argument("--engine-cpu", type=_cores)
    parser.add_argument("--caller-cpus", type=_cores)
    parser.add_argument("--out", type=Path, help="folder of report.json")
    return parser.parse_args()


def main() -> None:
    options, clock = _options(), SystemClock()
    place = Place(options.gateway_cpus, options.engine_cpu, options.caller_cpus)
    profile, gateways = PROFILES[options.period], {"server.gateways": options.gateways}
    report = new_report("eval-gateway", load_profile(str(profile), gateways), clock, options.seed)
    load_before = os.getloadavg()[0]
    with serving(profile, options.gateways, place) as server:
        bench = Bench(server, options, place, clock)
        if options.calls:
            points = [bench.point(calls) for calls in options.calls]
            for point in points:
                _show(point)
        else:
            points = search(bench, options.first, options.most)
        best = largest({p["calls"]: p["held"] and not p["void"] for p in points})
        quiet = bench.point(best or points[0]["calls"], packets=False)
        _show(quiet)
    report.results = {
        "most_calls": best,
        "load_average_before": load_before,
        "points": points,
        "same_calls_without_packets": quiet,
    }
    report.held = best > 0
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        report.save(options.out)
    print(f"{best} calls held")


if __name__ == "__main__":
    main()
