"""What `metronome doctor` judges: each fact of a machine against what a profile needs.

Knows:   what each lack costs, and how it is mended.
Ignores: how facts are read (machine.py), and what findings look like in a terminal.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from itertools import takewhile

from packaging.requirements import Requirement

from ..clock import Clock
from ..errors import MetronomeError, ProfileError
from ..models.assets import ASSETS, Asset, condition
from ..models.factory import lacking, weights_of
from ..profile import Profile
from ..stats import percentiles
from .machine import BEAT_S, Machine
from .profile import pool_problem
from .room import room_of

_GIB = 2**30
_ROOM_TO_RECORD = _GIB  # a day of eight recorded calls
_PROGRAM = _GIB // 2  # Python, torch and a tick's own tensors
_SPARE_FILES = 64  # sockets of the server's own, the files of a run
_MOST_TIMED = 4096  # calls of a tick that is timed
_ANSWERING = 3  # ticks after a question in which it is answered
_LATE_S = 0.005  # of the worst tenth of beats; an idle machine stays under a thousandth

# What cannot be done without an asset that the profile does not name.
_LOST = {
    "smollm2-135m-instruct": "the built-in profiles do not start",
    "whisper-tiny.en": "no built-in profile hears speech",
    "speech": "`load` and `demo` have nothing to say",
    "librivox": "how well the ears hear cannot be measured",
    "moby-dick": "what a window costs in perplexity cannot be measured",
    "questions": "answers to spoken questions cannot be measured",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. With `costs` it is a problem, and `mend` says what to do."""

    what: str
    found: str
    costs: str = ""
    mend: str = ""

    @property
    def fine(self) -> bool:
        return not self.costs


def check_machine(machine: Machine, profile: Profile) -> Iterator[Finding]:
    """Everything but assets, the port and a tick."""
    yield from _packages(machine)
    yield _torch(machine)
    yield _device(machine, profile)
    yield _cores(machine, profile)
    yield _load(machine, profile)
    yield _memory(machine, profile)
    yield _disk(machine)
    yield _threads(machine, profile)
    yield _files(machine, profile)
    yield _pool(profile)
    yield _clock(machine)


def check_assets(profile: Profile) -> Iterator[Finding]:
    """Each asset, and what else the profile names; without that the profile itself is lost."""
    needed = _assets_of(profile)
    for field, name in weights_of(profile).items():
        if name not in ASSETS:
            yield _named(field, name, profile)
    for asset in ASSETS.values():
        state = condition(asset)
        found = f"{state.state} ({state.detail})" if state.detail else state.state
        if state.state == "have":
            yield Finding(asset.name, found)
        elif asset.built_in:
            yield Finding(asset.name, found, _LOST[asset.name], "install metronome-cli again")
        else:
            lost = f"the profile {profile.name} does not start" if asset in needed else _LOST[asset.name]
            yield Finding(asset.name, found, lost, f"metronome assets fetch {asset.name}")


def check_model(profile: Profile) -> Finding:
    """Whether the model would take the profile, as far as that shows without loading its weights."""
    from ..models.factory import check

    try:
        check(profile)
    except MetronomeError as error:
        return _refused("profile", error, profile)
    return Finding("profile", f"{profile.name}: {profile.model.kind} on {profile.run.device}")


def check_port(profile: Profile) -> Finding:
    """Whether the profile's address can be listened on, by doing so for a moment."""
    from ..server.gateway import listen

    where = f"{profile.server.host} port {profile.server.port}"
    try:
        listen(profile.server.host, profile.server.port).close()
    except ProfileError as error:
        return Finding("port", f"{where} cannot be had", "`serve` does not start", error.cure)
    return Finding("port", f"{where} is free")


def check_tick(profile: Profile, clock: Clock) -> Finding:
    """Load the model, and time a tick of as many calls as the profile lets in."""
    try:
        calls, seconds = _tick(profile, clock)
    except MetronomeError as error:
        return _refused("tick", error, profile)
    found = f"{calls} calls in {seconds:.2f} s of {profile.beat.frame_s:g} s at most, windows not yet full"
    if seconds < profile.beat.frame_s:
        return Finding("tick", found)
    mend = "fewer admission.max_sessions, a longer beat.frame_s, or fewer other programs"
    return Finding("tick", found, "beats are skipped when all calls speak", mend)


def _refused(what: str, error: MetronomeError, profile: Profile) -> Finding:
    """What `serve` would end with."""
    cure = error.cure if isinstance(error, ProfileError) else ""
    found = str(error).removesuffix(f": {cure}")
    return Finding(what, found, f"the profile {profile.name} does not start", cure or "mend that first")


def _named(field: str, name: str, profile: Profile) -> Finding:
    """Weights of one's own, or of a hub."""
    try:
        said = lacking(field, name)
    except ProfileError as error:
        return _refused(field, error, profile)
    return Finding(field, said or f"{name}, a local path")


# ---- One by one --------------------------------------------------------------------------------


def _packages(machine: Machine) -> Iterator[Finding]:
    wrong = 0
    wanted = [Requirement(text) for text in machine.wants]
    wanted = [want for want in wanted if want.marker is None or want.marker.evaluate({"extra": ""})]
    for want in wanted:
        try:
            version = metadata.version(want.name)
        except metadata.PackageNotFoundError:
            version = ""
        if not version or not want.specifier.contains(version, prereleases=True):
            wrong += 1
            found = f"{want.name} is {version or 'missing'}"
            yield Finding("packages", found, "untested, or broken where it is used", f"pip install '{want}'")
    if not wrong:
        count = f"{len(wanted)} requirements, all met" if wanted else "not installed: versions are not known"
        yield Finding("packages", count)


def _torch(machine: Machine) -> Finding:
    gpu = "an NVIDIA GPU" if machine.gpu else "no NVIDIA GPU"
    if machine.torch is None:
        return Finding("torch", "missing", "no model can be loaded", "pip install torch")
    built = f"CUDA {machine.torch_cuda}" if machine.torch_cuda else "the CPU"
    return Finding("torch", f"{machine.torch}, built for {built}; {gpu}")


def _device(machine: Machine, profile: Profile) -> Finding:
    """What `serve` would refuse of run.device and what hangs on it; told without loading torch."""
    device, pool = profile.run.device, profile.pool
    lost = f"the profile {profile.name} does not start"
    if profile.model.kind == "null":
        return Finding("device", "a null model needs none")
    if device == "cuda":
        if machine.gpu and machine.torch_cuda:
            return Finding("device", "cuda")
        lack = "torch is not built for CUDA" if machine.gpu else "no NVIDIA GPU is here"
        mend = "run.device = cpu, or another machine"
        return Finding("device", f"run.device is cuda, and {lack}", lost, mend)
    for field, wanted in (("kv", "fp8"), ("blocks", "free")):
        if getattr(pool, field) == wanted:
            found = f"pool.{field} is {wanted}, and run.device is cpu"
            return Finding("device", found, lost, f"run.device = cuda, or another pool.{field}")
    return Finding("device", "cpu")


def _cores(machine: Machine, profile: Profile) -> Finding:
    found = f"{machine.cores} usable"
    if machine.cores >= profile.run.threads:
        return Finding("cores", found)
    costs = f"{profile.run.threads} threads wait for each other in every tick"
    return Finding("cores", found, costs, f"set run.threads to {machine.cores}, or use a larger machine")


def _load(machine: Machine, profile: Profile) -> Finding:
    found = f"load average {machine.load:.1f} on {machine.cores} cores"
    if machine.cores - machine.load >= min(machine.cores, profile.run.threads) - 0.5:
        return Finding("load", found)
    return Finding("load", found, "ticks take longer and freshness suffers", "end other programs")


def _memory(machine: Machine, profile: Profile) -> Finding:
    need = memory_needed(profile)
    if machine.free_memory is None:
        return Finding("memory", f"not known; about {_gib(need)} needed")
    found = f"{_gib(machine.free_memory)} free, about {_gib(need)} needed"
    if machine.free_memory >= need:
        return Finding("memory", found)
    return Finding("memory", found, "swapping, or the end of the engine", "fewer pool.blocks, or more memory")


def _disk(machine: Machine) -> Finding:
    missing = [asset for asset in ASSETS.values() if condition(asset).state != "have"]
    need = max((2 * asset.download_size + asset.size for asset in missing), default=0)
    found = f"{_gib(machine.cache_disk)} free for assets, {_gib(machine.runs_disk)} for runs"
    if machine.cache_disk < need:
        mend = f"make {_gib(need)} of room, or set METRONOME_HOME to another disk"
        return Finding("disk", found, "assets cannot be fetched", mend)
    if machine.runs_disk < _ROOM_TO_RECORD:
        return Finding(
            "disk", found, "recordings of long runs break off", "make room, or use --out elsewhere"
        )
    return Finding("disk", found)


def _threads(machine: Machine, profile: Profile) -> Finding:
    env, threads = machine.env, profile.run.threads
    if env.get("OMP_WAIT_POLICY", "").lower() == "active":
        costs = "threads that spin take the cores from packets and callers"
        return Finding("threads", "OMP_WAIT_POLICY=active", costs, "unset OMP_WAIT_POLICY")
    limit = env.get("OMP_THREAD_LIMIT", "")
    if limit.isdecimal() and float(limit) < threads:
        costs = f"ticks run on {limit} of {threads} threads"
        return Finding("threads", f"OMP_THREAD_LIMIT={limit}", costs, "unset OMP_THREAD_LIMIT")
    names = [name for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS") if name in env]
    told = f"; run.threads wins over {', '.join(names)}" if names else ""
    return Finding("threads", f"{threads} for the engine{told}")


def _files(machine: Machine, profile: Profile) -> Finding:
    calls, need = profile.admission.max_sessions, profile.admission.max_sessions + _SPARE_FILES
    found = f"{machine.open_files} may be open, {need} needed for {calls} calls"
    if machine.open_files >= need:
        return Finding("files", found)
    return Finding("files", found, "calls are dropped before all places are taken", f"ulimit -n {need}")


def _pool(profile: Profile) -> Finding:
    calls = profile.admission.max_sessions
    problem = pool_problem(profile)
    if problem is None:
        blocks = "what the GPU has left" if profile.pool.blocks == "free" else f"{profile.pool.blocks} blocks"
        return Finding("pool", f"{blocks} for {calls} calls")
    return Finding("pool", *problem)


def _clock(machine: Machine) -> Finding:
    late = percentiles(machine.late_s, (50, 90, 100)) or {}
    p50, p90, most = (1000 * late[name] for name in ("p50", "p90", "p100"))
    found = f"beats of {1000 * BEAT_S:g} ms are {p50:.1f} ms late, {p90:.1f} at p90, {most:.1f} at most"
    if p90 / 1000 <= _LATE_S:
        return Finding("clock", found)
    return Finding(
        "clock", found, "packets and ticks start that late", "end other programs, or raise our priority"
    )


# ---- What a profile needs ----------------------------------------------------------------------


def memory_needed(profile: Profile) -> int:
    """About how many bytes serving takes; what is no asset or local folder counts nothing."""
    if profile.model.kind == "null":
        return _PROGRAM
    room = room_of(profile) if profile.run.device == "cpu" else None
    held = (room.pool_bytes or 0) + room.beside_bytes * profile.admission.max_sessions if room else 0
    return _PROGRAM + sum(asset.size for asset in _assets_of(profile)) + held


def _assets_of(profile: Profile) -> list[Asset]:
    return [ASSETS[name] for name in weights_of(profile).values() if name in ASSETS]


def _tick(profile: Profile, clock: Clock) -> tuple[int, float]:
    """(calls, seconds) of the slowest tick, but for the first, of as many calls as there is room for.

    Each asks a question, falls silent and is answered: what is heard and said in the same tick costs most.
    """
    import numpy as np

    from ..frame import Frame
    from ..models.assets import locate
    from ..models.factory import build
    from ..profile import Terms
    from ..speech import at_rate, read_clips

    engine = build(profile)
    rate = profile.model.rate
    said = [at_rate(clip.samples, rate) for clip in read_clips(locate("questions"))]
    length = round(profile.beat.frame_s * rate)
    most = range(min(profile.admission.max_sessions, _MOST_TIMED))
    calls = list(takewhile(lambda call: engine.open(call, 0, Terms()) is None, most))
    count = math.ceil(max(len(said[call % len(said)]) for call in calls) / length) + _ANSWERING
    heard = [np.pad(said[call % len(said)], (0, count * length)) for call in calls]
    typed = ("What is the capital of France?",) if profile.model.kind == "text" else ()
    seconds = []
    for number in range(count):
        span = slice(number * length, (number + 1) * length)
        texts = typed if number == 1 else ()
        frames = [Frame(call, sound[span], texts) for call, sound in zip(calls, heard, strict=True)]
        start = clock.now()
        for _ in engine.tick(frames):
            pass
        seconds.append(clock.now() - start)
    return len(calls), max(seconds[1:])  # the first one warms up


def _gib(size: int) -> str:
    return f"{size / _GIB:.1f} GiB"
