"""`metronome load`: paced calls against a server, and what their callers got.

Knows:   the command, the run folder, and which parts of load/ and reporting/ it joins.
Ignores: how a call is held and what makes a figure honest; load/ does.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from . import load_options as opt
from .load_options import AsJson, Duration, Out, Speech
from .load_options import seconds as parse_seconds
from .progress import watching
from .report import show, unsaved

if TYPE_CHECKING:
    from ..errors import MetronomeError
    from ..load.plan import Plan
    from ..load.runner import Doomed, Run
    from ..report import Report
    from ..runtime.recorder import Recorder
    from ..speech import Clip

__all__ = [
    "AsJson",
    "Duration",
    "Out",
    "Speech",
    "busy",
    "ended_like_interrupted",
    "load",
    "parse_seconds",
    "read_speech",
    "recording",
]


def load(
    ctx: typer.Context,
    url: opt.Url = "http://127.0.0.1:8765",
    *,
    sessions: opt.Sessions = None,
    offer: opt.Offer = None,
    duration: opt.Duration = "60s",  # type: ignore[assignment]  # typer parses the default as it parses input
    spread: opt.Spread = None,
    arrival_rate: opt.ArrivalRate = None,
    arrivals: opt.Arrivals = "constant",
    redials: opt.Redials = 5,
    wait: opt.Wait = "60s",  # type: ignore[assignment]
    call_length: opt.CallLength = None,
    cancel_rate: opt.CancelRate = 0.0,
    vanish_rate: opt.VanishRate = 0.0,
    speech: opt.Speech = "speech",
    talk: opt.Talk = None,
    silence: opt.Silence = None,
    protocol: opt.Protocol = "auto",
    model: opt.Model = "",
    replies: opt.Replies = "auto",
    keep_speech: opt.KeepSpeech = 4,
    listen: opt.Listen = False,
    api_key_file: opt.ApiKeyFile = None,
    budget: opt.Budget = None,
    find_n: opt.FindN = False,
    most: opt.Most = 1024,
    resume: opt.Resume = None,
    seed: opt.Seed = 0,
    as_json: opt.AsJson = False,
    out: opt.Out = Path("runs"),
) -> None:
    """Hold paced calls of real speech against a server, and report what their callers got.

    Packets leave every 20 ms by the wall clock, whether or not the server keeps up; freshness counts from the
    moment a frame's last sample was due. Exit code 0 when every limit held, 3 when one was missed or could
    not be measured, 4 when nobody answers within --wait, 130 when a --find-n was interrupted.

    \b
    Examples:
      metronome load --sessions 8 --duration 5m
      metronome load --sessions 8 --call-length exp:30s --vanish-rate 0.1 --cancel-rate 0.2
      metronome load --offer 200 --arrival-rate 2 --arrivals poisson --call-length lognormal:60s:0.5
      metronome load --sessions 4 --replies audio --listen
      metronome load --find-n --duration 3m --budget 1s
      metronome load ws://127.0.0.1:8000/v1/realtime --protocol vllm --model NAME --talk 5s --silence 2s
    """
    plan = opt.plan_of(ctx.params)
    with ended_like_interrupted():
        if find_n or resume:
            from .find_n import search

            report, failure = search(plan, speech, most, resume, out, wait)
        else:
            report, failure = measure(plan, speech, out, wait, listen)
    show(report, as_json)
    if failure:
        raise failure
    raise typer.Exit(0 if report.held else 3)


def be_patient(plan: Plan, wait_s: float) -> None:
    """Return once the server takes calls; TargetUnreachable after `wait_s` seconds, 0 asks nobody."""
    from ..clock import SystemClock
    from ..load.readiness import await_ready

    if wait_s:
        await_ready(plan.url, wait_s, SystemClock(), lambda why: typer.echo(why, err=True))


def measure(
    plan: Plan, speech: str, out: Path, wait_s: float, listen: bool = False
) -> tuple[Report, MetronomeError | None]:
    """Run `plan`, and leave a run folder with everything it found. The error says why that is not whole."""
    clips = read_speech(speech)
    be_patient(plan, wait_s)
    with recording(out, "load", name_of(plan)) as (folder, recorder):
        report, run = hold(plan, clips, recorder)
    if listen:
        _listen(report, run)
    return report, keep(report, folder, recorder.failure, run)


def hold(
    plan: Plan, clips: list[Clip], recorder: Recorder, doomed: Doomed | None = None
) -> tuple[Report, Run]:
    """Hold the calls of `plan`; the report of what they got, not yet saved."""
    from ..clock import SystemClock
    from ..load import limits, results
    from ..load.buckets import width
    from ..load.runner import run_load
    from ..report import new_report

    clock = SystemClock()
    report = new_report("load", None, clock, plan.seed)
    with watching(f"{plan.sessions} calls", plan.duration_s) as watch:
        run = run_load(plan, clips, clock, recorder, watch, doomed)
    report.results = results.summarise(run, width(run.end - run.start))
    report.results["wer"] = results.word_errors(run)
    report.held, report.results["verdict"] = limits.held(report.results), limits.verdict(report.results)
    report.notes = [*results.notes(report.results), *busy()]
    return report, run


def busy() -> list[str]:
    """A note when this machine had more to do in the last minute than a run and a server here ask for."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load < 2 * cores:
        return []
    return [f"the machine was busy (load {load:.1f} on {cores} cores): close other programs and run it again"]


def _listen(report: Report, run: Run) -> None:
    """Let somebody hear the replies who knows nothing of what was meant."""
    from ..errors import AssetError
    from ..load.results import reply_errors
    from ..models.listener import Listener

    try:
        report.results["replies_wer"] = reply_errors(run, Listener().write)
    except AssetError as error:
        report.notes.append(f"replies were not listened to: {error}")
        return
    if report.results["replies_wer"] is None:
        report.notes.append(
            "replies were not listened to: none was kept that had both sound and text; it takes a "
            "server whose model speaks (model.output), --keep-speech 1 or more, and not --replies text"
        )


def keep(report: Report, folder: Path, unrecorded: str = "", run: Run | None = None) -> MetronomeError | None:
    """Save and draw a report, with the speech that was kept; `unrecorded` says why its records are not whole.

    A full disk, or a folder that is gone, is handed back as a value: it must not cost the answer.
    """
    from ..errors import MetronomeError
    from ..load.results import spoken_by
    from ..load.spoken import write_all
    from ..reporting.summary import redraw

    failure = MetronomeError(unrecorded) if unrecorded else None
    report.notes += [unrecorded] if unrecorded else []
    try:
        if run:
            report.results["spoken"] = write_all(spoken_by(run), folder)
        report.save(folder)
        redraw(folder)
    except OSError as error:
        failure = unsaved(folder, error)
        report.notes.append(str(failure))
        return failure
    typer.echo(f"run: {folder}", err=True)
    return failure


def name_of(plan: Plan) -> str:
    """What stands for a plan in the name of its run folder: whom it calls."""
    from urllib.parse import urlsplit

    from ..report import without_login

    url = without_login(plan.url)
    return urlsplit(url).netloc or url


def read_speech(name: str) -> list[Clip]:
    """The clips of a folder, of an asset or of a data set."""
    from ..load.recordings import read_speech as read

    return read(name)


@contextmanager
def ended_like_interrupted() -> Iterator[None]:
    """SIGTERM and SIGHUP (a closed terminal) unwind as Ctrl-C does: no server left behind, nothing lost.

    Calls in progress are ended in order instead, with a report of what was measured (load/runner.py).
    """
    before = {end: signal.getsignal(end) for end in (signal.SIGTERM, signal.SIGHUP)}
    if before[signal.SIGHUP] is signal.SIG_IGN:
        del before[signal.SIGHUP]  # nohup: a closed terminal is not to end the run
    for end in before:
        signal.signal(end, signal.default_int_handler)
    try:
        yield
    finally:
        for end, handler in before.items():
            signal.signal(end, handler)


@contextmanager
def recording(out: Path, command: str, name: str) -> Iterator[tuple[Path, Recorder]]:
    """A new run folder and its recorder; a run that failed before its first record leaves no folder."""
    from ..clock import SystemClock
    from ..report import run_folder

    folder = run_folder(out, command, name, SystemClock())
    with recording_in(folder) as recorder:
        yield folder, recorder


@contextmanager
def recording_in(folder: Path) -> Iterator[Recorder]:
    """A recorder in an empty folder, which goes with a run that failed before its first record."""
    from ..clock import SystemClock
    from ..runtime.recorder import Recorder

    recorder = Recorder(folder, SystemClock())
    try:
        yield recorder
    except BaseException:
        recorder.close()
        trace = folder / "trace.jsonl"
        if trace.exists() and trace.read_bytes().count(b"\n") <= 1:
            shutil.rmtree(folder)
        raise
    finally:
        recorder.close()
