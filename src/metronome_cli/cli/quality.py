"""`metronome probe quality`: the options, the run folder with its finished cells, progress.

Knows:   how a grid is left and taken up again: one file per finished cell.
Ignores: how a cell is played (probes/), what tables and pictures look like (reporting/).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .report import show

if TYPE_CHECKING:
    from ..probes.grid import Cell, Grid, Kind
    from ..probes.quality import Probe
    from ..report import Report

    Watch = Callable[[Sequence[Cell], float], None]

PLAN, CELLS = "plan.json", "cells"
SCORES = ("answers", "loops", "stream_ppl", "gen_ppl", "asr_wer", "pace")

_JUDGE = "smollm2-135m-instruct"  # of what models say that are more than a text model
_SEGMENT_S = 14.0  # of a free-running call: a question, and time to answer it


def quality(
    ctx: typer.Context,
    *,
    profile: Annotated[str, typer.Option(help="A built-in profile, or a path ending in .toml.")] = "laptop",
    windows: Annotated[str, typer.Option(metavar="LIST", help="W to try, in tokens: 256,512.")] = "256,512",
    sinks: Annotated[
        str, typer.Option(metavar="LIST", help="S to try, in tokens or header; 0 is always tried.")
    ] = "header",
    positions: Annotated[str, typer.Option(metavar="LIST", help="anchored, absolute, or both.")] = "anchored",
    modes: Annotated[str, typer.Option(metavar="LIST", help="turn, free, or both.")] = "turn,free",
    scores: Annotated[
        str, typer.Option(metavar="LIST", help=f"{', '.join(SCORES)}.")
    ] = "answers,loops,stream_ppl,gen_ppl,pace",
    sessions: Annotated[int, typer.Option(min=1, help="Calls in each cell.")] = 4,
    minutes: Annotated[
        float, typer.Option(min=0.1, help="Length of a free-running call, in minutes of its own time.")
    ] = 2.5,
    questions: Annotated[int, typer.Option(min=1, help="Questions of a turn-based call.")] = 10,
    at_once: Annotated[
        int, typer.Option(min=1, help="Calls played side by side at most: more is faster, and takes memory.")
    ] = 32,
    stream_tokens: Annotated[int, typer.Option(min=512, help="Tokens read for stream_ppl.")] = 2048,
    text: Annotated[
        Path | None, typer.Option(help="What stream_ppl reads: a long UTF-8 text; the asset moby-dick.")
    ] = None,
    seed: Annotated[str, typer.Option(metavar="LIST", help="Seeds: what is asked and read.")] = "0",
    data: Annotated[
        str, typer.Option(help="Questions: builtin, a local file or folder, or a dataset's hub id.")
    ] = "builtin",
    spoken: Annotated[bool, typer.Option(help="Ask aloud, through the ears, instead of typing.")] = False,
    judge: Annotated[
        str | None, typer.Option(help="Who judges gen_ppl: asset, folder or hub id; text models themselves.")
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="The folder of a grid to go on with.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as one JSON document.")] = False,
    out: Annotated[Path, typer.Option(help="Where the run folder is made.")] = Path("runs"),
) -> None:
    """Measure what each window and its sinks cost: answers, loops and perplexity, against no bound at all.

    Every cell runs the engine that serves, in virtual time. Unbounded, S=0 and recycling are always tried
    beside what is asked. A finished cell is never lost: --resume goes on with an interrupted grid, and
    what else is given with it must be as it was. asr_wer of a model that only writes is of sentences said
    after a voice; one that speaks is heard in what it answers, and held against its own text.

    The defaults take about nine minutes on two cores, free-running calls two to four of them. More take
    --minutes, --questions, --sessions, --stream-tokens, more bounds or seeds, --spoken and asr_wer.

    \b
    Examples:
      metronome probe quality
      metronome probe quality --windows 256,512,1024 --sinks 4,header,64 --seed 0,1,2 --sessions 16
      metronome probe quality --modes free --minutes 10 --spoken
    """
    asked = {name: value for name, value in ctx.params.items() if name not in ("resume", "as_json", "out")}
    asked = {name: str(value) if isinstance(value, Path) else value for name, value in asked.items()}
    if resume:
        asked |= _asked_before(resume, {name: value for name, value in asked.items() if _typed(ctx, name)})
    report = _probe(asked, resume, out)
    show(report, as_json)
    raise typer.Exit(0 if report.held else 3)


def _probe(asked: dict[str, Any], resume: Path | None, out: Path) -> Report:
    from ..clock import SystemClock
    from ..report import new_report
    from ..reporting.summary import redraw

    clock = SystemClock()
    grid, probe = _set_up(asked)
    folder = resume or _begin(asked, out)
    report = new_report("probe-quality", probe.profile, clock, grid.seeds[0])
    try:
        with _showing(grid.cells()) as watch:
            failed = _play(grid, probe, folder / CELLS, asked["at_once"], watch)
    except KeyboardInterrupt:
        typer.echo(f"interrupted; go on with --resume {folder}", err=True)
        raise
    _conclude(report, grid, probe, folder, asked, failed)
    report.save(folder)
    redraw(folder)
    typer.echo(f"run: {folder}", err=True)
    return report


def _set_up(asked: dict[str, Any]) -> tuple[Grid, Probe]:
    """The grid and the probe; every option is checked before anything is loaded."""
    from ..clock import SystemClock
    from ..errors import ProfileError
    from ..probes.cells import TEXT_MODELS, Plan
    from ..probes.grid import Grid
    from ..probes.quality import Material, Probe
    from ..probes.questions import place_of
    from ..profile import load_profile

    profile = load_profile(asked["profile"])
    scores = _words(asked["scores"], "scores", SCORES)
    modes = _words(asked["modes"], "modes", ("turn", "free"))
    # A model that speaks is heard in what it answers anyway; one that writes says sentences after a voice.
    listen = "asr_wer" in scores and profile.model.speaks
    kinds = modes if listen or {"answers", "loops", "gen_ppl"} & set(scores) else []
    kinds += ["stream"] * ("stream_ppl" in scores) + ["repeat"] * ("asr_wer" in scores and not listen)
    kinds += ["pace"] * ("pace" in scores)
    segment_frames = max(2, round(_SEGMENT_S / profile.beat.frame_s))
    frames = asked["minutes"] * 60 / profile.beat.frame_s
    if frames < 2 * segment_frames:
        raise ProfileError("minutes", asked["minutes"], f"use {2 * _SEGMENT_S / 60:.2g} or more")
    grid = Grid(
        windows=[_count(word, "windows") for word in asked["windows"].split(",")],
        sinks=[word if word == "header" else _count(word, "sinks") for word in asked["sinks"].split(",")],
        positions=_words(asked["positions"], "positions", ("anchored", "absolute")),
        kinds=kinds,
        seeds=[_count(word, "seed") for word in asked["seed"].split(",")],
        controlled=bool({"answers", "loops", "gen_ppl"} & set(scores)),
    )
    place_of(asked["data"])
    if (text := asked["text"]) and (not Path(text).exists() or Path(text).is_dir()):
        raise ProfileError("text", text, "give a readable UTF-8 file")
    plan = Plan(
        sessions=asked["sessions"],
        per_call=asked["questions"],
        segments=round(frames / segment_frames) - 1,
        segment_frames=segment_frames,
        spoken=asked["spoken"],
    )
    material = Material(
        data=asked["data"],
        text=asked["text"],
        stream_tokens=asked["stream_tokens"],
        judge=asked["judge"] or (None if profile.model.kind in TEXT_MODELS else _JUDGE),
        gen_ppl="gen_ppl" in scores,
        listen=profile.model.speaks and bool({"asr_wer", "gen_ppl"} & set(scores)),
    )
    return grid, Probe(profile, plan, material, grid.windows, SystemClock())


def _words(text: str, name: str, known: tuple[str, ...]) -> list[Any]:
    from ..errors import ProfileError

    words = list(dict.fromkeys(word.strip() for word in text.split(",")))
    for word in words:
        if word not in known:
            raise ProfileError(name, word, f"use some of {', '.join(known)}")
    return words


def _count(text: str, name: str) -> int:
    from ..errors import ProfileError

    word = text.strip()
    if not word.isdecimal() or len(word) > 9:
        raise ProfileError(name, word, "use whole numbers, separated by commas")
    return int(word)


def _begin(asked: dict[str, Any], out: Path) -> Path:
    from ..clock import SystemClock
    from ..report import run_folder

    folder = run_folder(out, "probe-quality", Path(asked["profile"]).stem, SystemClock())
    (folder / CELLS).mkdir()
    (folder / PLAN).write_text(json.dumps(asked, indent=2) + "\n", "utf-8")
    return folder


def _typed(ctx: typer.Context, name: str) -> bool:
    """Whether an option was given, and is not only its default."""
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _asked_before(folder: Path, typed: Mapping[str, Any]) -> dict[str, Any]:
    """What the grid in `folder` was asked. ProfileError when it is asked anything else now."""
    from ..errors import ProfileError

    try:
        found: dict[str, Any] = json.loads((folder / PLAN).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ProfileError("resume", str(folder), f"give the folder of a probe quality ({error})") from None
    for name, value in typed.items():
        if name != "at_once" and value != found.get(name):
            cure = f"it was {found.get(name)!r} in {folder}: leave it out, or begin anew"
            raise ProfileError(name, value, cure)
    # How many calls are played at once changes no score, and the machine may be another.
    return found | {name: value for name, value in typed.items() if name == "at_once"}


def _play(grid: Grid, probe: Probe, folder: Path, at_once: int, watch: Watch) -> dict[str, str]:
    """Play the cells that have no file yet. Returns why cells, or whole kinds of them, were not measured."""
    from ..probes.grid import side_by_side

    failed: dict[str, str] = {}
    files = {cell: folder / f"{cell.slug}.json" for cell in grid.cells()}
    left = [cell for cell, file in files.items() if not file.exists()]
    if done := [cell for cell in files if cell not in left]:
        watch(done, 1.0)
    for group in side_by_side(left, max(1, at_once // probe.plan.sessions)):
        kind = group[0].kind
        if kind not in failed:
            failed |= _play_group(probe, group, files, watch)
            failed |= _hopeless(grid, _kept(files), kind)
        watch(group, 1.0)
    return failed


def _play_group(
    probe: Probe, group: Sequence[Cell], files: Mapping[Cell, Path], watch: Watch
) -> dict[str, str]:
    """Play and keep cells side by side. A bound that the profile cannot give fails alone; what all cells of a
    kind need (questions, a voice, a judge) fails them all."""
    from ..errors import MetronomeError, ProfileError
    from ..report import write_whole

    try:
        found = probe.run(group, partial(watch, group))
    except ProfileError as error:
        if len(group) == 1:
            return {group[0].name: str(error)}
        alone = [_play_group(probe, [cell], files, watch) for cell in group]
        return {name: why for one in alone for name, why in one.items()}
    except MetronomeError as error:
        return {group[0].kind: f"{group[0].name}: {error}"}
    for cell, one in zip(group, found, strict=True):
        write_whole(files[cell], json.dumps(one) + "\n")
    return {}


def _kept(files: Mapping[Cell, Path]) -> dict[Cell, Any]:
    """The cells that were played, now or before."""
    return {cell: json.loads(file.read_text("utf-8")) for cell, file in files.items() if file.exists()}


def _hopeless(grid: Grid, played: Mapping[Cell, Any], kind: Kind) -> dict[str, str]:
    """Why the cells of a kind mean nothing, where its unbounded control could not answer."""
    from ..probes.grid import PLAYED, UNBOUNDED
    from ..probes.verdict import refusal

    controls = [one for cell, one in played.items() if (cell.kind, cell.bound) == (kind, UNBOUNDED)]
    judged = grid.controlled and kind in PLAYED
    found = [why for one in controls if judged and (why := refusal(kind, one))]
    return {kind: found[0]} if found else {}


def _conclude(
    report: Report, grid: Grid, probe: Probe, folder: Path, asked: dict[str, Any], failed: dict[str, str]
) -> None:
    from ..probes.grid import UNBOUNDED
    from ..probes.verdict import conclude, in_words

    kept = _kept({cell: folder / CELLS / f"{cell.slug}.json" for cell in grid.cells()})
    hopeless = [kind for kind in grid.kinds if _hopeless(grid, kept, kind)]
    played = {cell: one for cell, one in kept.items() if cell.bound == UNBOUNDED or cell.kind not in hopeless}
    rows = conclude(grid.bounds, played, probe.profile, grid.seeds[0])
    # Of a whole kind the reason names itself; of a cell it does not.
    reasons = [why if name in grid.kinds else f"{name}: {why}" for name, why in failed.items()]
    report.notes = [f"not measured: {why}" for why in reasons]
    report.held = not failed
    report.results = {
        "asked": asked,
        "rows": rows,
        "not_measured": failed,
        "verdict": in_words(rows, probe.profile) or "No bound was judged: no calls were asked and answered.",
        "wall_s": sum(cell["wall_s"] for cell in played.values()),
    }


@contextmanager
def _showing(cells: list[Cell]) -> Iterator[Watch]:
    """Bar, cell and time left on standard error; one line per cell where that is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console, done = Console(stderr=True), set()
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("cells, left"), TimeRemainingColumn())
    with Progress(
        *columns,
        TextColumn("{task.fields[cell]}"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        task = progress.add_task("cells", total=len(cells), cell="")

        def watch(group: Sequence[Cell], share: float) -> None:
            under_way = [cell for cell in group if cell not in done]
            part = share * len(under_way) if share < 1 else 0
            name = f"{group[0].name}, {len(group)} side by side" if len(group) > 1 else group[0].name
            if share >= 1:
                for cell in under_way:
                    done.add(cell)
                    if not console.is_terminal:
                        typer.echo(f"{len(done)}/{len(cells)} {cell.name}", err=True)
            progress.update(task, completed=len(done) + part, cell=name)

        yield watch
