"""A named set-up: everything that stays the same during a run.

Knows:   the fields of profiles/*.toml, their ranges, and where profiles lie.
Ignores: how any of it is carried out. Unknown keys are errors, not surprises.
"""

from __future__ import annotations

import math
import tomllib
from bisect import bisect_left
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic_core import PydanticCustomError

from .errors import ProfileError
from .kinds import KINDS, Output, is_own, kind_of
from .window import Policy, Positions, Recycle, Unbounded, Window, most_blocks

Count = Annotated[int, Field(ge=1, le=2**31)]
Seconds = Annotated[float, Field(ge=0.001, le=1e8)]  # a millisecond to three years
PerSecond = Annotated[float, Field(ge=0.001, le=1e9)]
LEAST_WARM, MOST_WARM = 0.01, 100.0  # temperatures: below, divided logits overflow; above, all are alike
MOST_BLOCKS = 10_000_000
LEAST_TOP_P = 0.001  # one that single precision takes for 0 leaves no token at all
Origin = Annotated[str, Field(pattern=r"^(\*|https?://[^/\s]+)$")]

NOT_COUNTED = (
    "only a GPU's memory is filled up: give a number (`metronome profile show` tells what a call takes)"
)


def _greedy_or_warm(temperature: float) -> float:
    if temperature and not LEAST_WARM <= temperature <= MOST_WARM:
        raise PydanticCustomError("cold", f"use 0 (greedy), or {LEAST_WARM:g} to {MOST_WARM:g}")
    return temperature


class _Checked(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class _Section(_Checked):
    @field_validator("*", mode="before")
    @classmethod
    def _no_truth(cls, value: object) -> object:
        """true would pass for 1 wherever a number may stand; no field is a truth."""
        if isinstance(value, bool):
            raise PydanticCustomError("truth", "use a number or a text, not true or false")
        return value


class ModelSection(_Section):
    """What hears, what thinks, and how it talks. Names are assets, local folders or hub ids."""

    kind: str = "cascade"  # of kinds.py, or "package.module:Class" of one's own
    thinker: str = "smollm2-135m-instruct"
    ears: str = "whisper-tiny.en"
    header: str = "You are a helpful AI assistant. Answer in one short sentence."
    mode: Literal["turn", "free"] = "turn"
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    products: Literal["bfloat16"] | None = None  # what matrices are multiplied in; None: as they are kept
    temperature: Annotated[float, AfterValidator(_greedy_or_warm)] = 0.0
    top_p: Annotated[float, Field(ge=LEAST_TOP_P, le=1)] = 1.0
    max_reply: Count = 200  # turn mode: tokens after which a reply is ended
    heard_tokens: Annotated[int, Field(ge=4, le=200)] = 40  # ears: most text tokens per buffer and frame
    rate: Literal[16_000, 24_000] = 16_000  # samples per second of the audio that it hears
    output: Output | None = None  # audio: it speaks; None: as its kind does

    @field_validator("kind")
    @classmethod
    def _known_kind(cls, kind: str) -> str:
        if kind not in KINDS and not is_own(kind):
            cure = f'use one of {", ".join(KINDS)}, or "package.module:Class" of your own'
            raise PydanticCustomError("kind", "{cure}", {"cure": cure})
        return kind

    @property
    def speaks(self) -> bool:
        """Whether its replies are sound, with their text as a transcript."""
        return (self.output or kind_of(self.kind).output) == "audio"


class BeatSection(_Section):
    """The period, and what one session may do in one."""

    frame_s: Seconds = 2.0
    tau: Count = 6  # tokens decoded per session and frame
    prefill_tokens: Annotated[int, Field(ge=2)] = 64  # most tokens appended per session and tick


class WindowSection(_Section):
    """Retention: how much of a call stays resident. `window` in tokens, or in seconds as "20 s"."""

    policy: Literal["window", "unbounded", "recycle"] = "window"
    window: Count | Annotated[str, Field(pattern=r"^\d{1,9}(\.\d{1,9})? ?s$")] = 512
    sinks: Annotated[int, Field(ge=0)] | Literal["header"] = "header"
    carry: Annotated[int, Field(ge=0)] | None = None  # recycle only; default half the window
    positions: Positions = "anchored"


class PoolSection(_Section):
    """The device's KV blocks, shared by all sessions."""

    blocks: Annotated[int, Field(ge=1, le=MOST_BLOCKS)] | Literal["free"] = 320  # free: what the GPU has left
    block_size: Count = 16
    kv: Literal["model", "fp8"] = "model"  # fp8: windows in 8 bits, sinks as the model; CUDA alone

    @property
    def count(self) -> int:
        """Blocks, where they must be known beforehand. ProfileError when they are what a device has left."""
        if self.blocks == "free":
            raise ProfileError("pool.blocks", "free", NOT_COUNTED)
        return self.blocks


class AdmissionSection(_Section):
    """Who may join: what moves the cap on live calls (runtime/admission), and what calls are to get."""

    admit: Literal["fixed", "aimd", "gradient", "forecast"] = "fixed"
    max_sessions: Count = 8  # the cap is never above it; fixed: it is the cap
    target_share: Annotated[float, Field(ge=0.01, le=1)] = (
        0.8  # of frame_s, in which the last token is to come
    )
    percentile: Annotated[float, Field(ge=50, lt=100)] = 95.0  # of ticks that keep the target
    window_ticks: Annotated[int, Field(ge=1, le=200)] = 20  # that are looked at
    horizon_s: Seconds = 300.0  # forecast: how long a call is expected to last


class ServerSection(_Section):
    """Where the gateway listens and what it takes from one caller."""

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8765  # 0: any free port
    gateways: Annotated[int, Field(ge=1, le=16)] = 1  # processes that share the port and its calls
    max_event_bytes: Count = 1_048_576
    max_pending_s: Seconds = 30.0  # audio a session may have waiting
    reaper_s: Seconds = 2.0  # how often the dead are looked for
    idle_s: Seconds = 60.0  # a session without any input for so long is closed
    grace_s: Seconds = 30.0  # how long a session that asked for it outlives its connection
    replay_bytes: Count = 1_048_576  # of events kept for a caller who comes back
    drain_s: Annotated[float, Field(ge=0, le=1e8)] = 10.0  # after SIGTERM: for calls to end by themselves
    hang_s: Seconds = 60.0  # an engine that says nothing for so long, and two frames, is ended
    restarts: Annotated[int, Field(ge=0)] = 5  # in a row, of an engine that soon ends again; then all ends
    origins: list[Origin] = []  # pages of other hosts that may call, as "https://app.example.org"; "*": any
    max_opens_per_s: PerSecond = 500.0  # calls let in; where there are several gateways each has its share
    max_events_per_s: PerSecond = 1000.0  # a caller who sends more is read more slowly
    mute_s: Seconds = 30.0  # so much sound without a word in answer: the session counts as mute


class RunSection(_Section):
    device: Literal["cpu", "cuda"] = "cpu"  # where the model computes, but a cascade's ears
    threads: Annotated[int, Field(ge=1, le=1024)] = 2
    seed: Annotated[int, Field(ge=0)] = 0


class Terms(_Section):
    """What one session asks for in place of its profile's own; None keeps that."""

    policy: Literal["window", "unbounded", "recycle"] | None = None
    window: Count | None = None
    sinks: Annotated[int, Field(ge=0)] | Literal["header"] | None = None
    positions: Positions | None = None
    instructions: str | None = None


OWN = Terms()  # a session that asks for nothing


class Profile(_Checked):
    """One set-up, checked. Build it with `load_profile`; its errors name field, value and cure."""

    name: str
    about: str = ""
    model: ModelSection = ModelSection()
    beat: BeatSection = BeatSection()
    window: WindowSection = WindowSection()
    pool: PoolSection = PoolSection()
    admission: AdmissionSection = AdmissionSection()
    server: ServerSection = ServerSection()
    run: RunSection = RunSection()

    def policy(self, header_tokens: int) -> Policy:
        """The retention policy, with `header` and seconds resolved to tokens.

        Seconds become whole frames of `prefill_tokens + tau`, the most a frame can add, so at
        least that long is always in view.
        """
        section = self.window
        window = section.window
        if isinstance(window, str):
            frames = math.ceil(float(window.rstrip("s ")) / self.beat.frame_s)
            window = frames * (self.beat.prefill_tokens + self.beat.tau)
        if section.policy == "unbounded":
            return Unbounded()
        if section.policy == "recycle":
            return Recycle(window, -1 if section.carry is None else section.carry)
        sinks = header_tokens if section.sinks == "header" else section.sinks
        if sinks > window:
            raise ProfileError(
                "window.sinks",
                section.sinks,
                f"{sinks} pinned tokens are more than the window of {window}; "
                f"use {window} or fewer, or a larger window",
            )
        return Window(window, sinks)

    def session_blocks(self, header_tokens: int) -> int | None:
        """Most blocks that one session can ever hold; None for a policy without a bound."""
        return most_blocks(self.policy(header_tokens), self.pool.block_size, self.beat.prefill_tokens)

    def check_fit(self, header_tokens: int) -> Policy:
        """The policy, once it is sure that at least one session of it fits the pool."""
        policy = self.policy(header_tokens)
        room = self.beat.prefill_tokens
        if isinstance(policy, Recycle) and policy.window < room:
            raise ProfileError("window.window", policy.window, f"use beat.prefill_tokens = {room} or more")
        if isinstance(policy, Recycle) and policy.carry + room > policy.window:
            cure = f"use at most window - beat.prefill_tokens = {policy.window - room}"
            raise ProfileError("window.carry", policy.carry, cure)
        bound = self.session_blocks(header_tokens)
        if bound is not None and self.pool.blocks != "free" and bound > self.pool.blocks:
            if isinstance(policy, Window):  # a header whose tokens were not counted yet takes its part, too
                expected = kind_of(self.model.kind).header_tokens(self.model.header)
                bound = self.session_blocks(max(header_tokens, min(expected, policy.window)))
            needs = f"one session of this window needs {bound} blocks of {self.pool.block_size} tokens"
            cure = f"{needs}; use {bound} or more, or a smaller window"
            raise ProfileError("pool.blocks", self.pool.blocks, cure)
        return policy

    def on(self, terms: Terms) -> Profile:
        """This profile with one session's terms in place of its own."""
        asked = terms.model_dump(exclude_none=True)
        header = asked.pop("instructions", self.model.header)
        return self.model_copy(
            update={
                "window": self.window.model_copy(update=asked),
                "model": self.model.model_copy(update={"header": header}),
            }
        )

    def session_policy(self, terms: Terms, own_header: int, header: int) -> Policy:
        """The policy of a session on its own terms; ProfileError when they take more than the profile gives.

        The headers are the lengths in tokens of the profile's and of the session's. Instructions live within
        the session's bound: a window that it did not ask for gives way to them, down to half of it. Where
        that is not enough, the error names them and how much to cut.
        """
        try:
            return self._session_policy(terms, own_header, header)
        except ProfileError as error:
            sent = terms.model_dump(exclude_none=True)
            most = bisect_left(range(header), True, key=lambda n: not self._gives(terms, own_header, n)) - 1
            if most < 0 or "instructions" not in sent or error.field.removeprefix("window.") in sent:
                raise
            cut = f"cut {header - most} of them, {1 - most / header:.0%}"
            cure = f"{most} tokens fit beside the window here, the model's own marks among them: {cut}"
            raise ProfileError("session.instructions", f"{header} tokens", cure) from None

    def _gives(self, terms: Terms, own_header: int, header: int) -> bool:
        try:
            return bool(self._session_policy(terms, own_header, header))
        except ProfileError:
            return False

    def _session_policy(self, terms: Terms, own_header: int, header: int) -> Policy:
        asked = self.on(terms)
        policy = asked.policy(header)
        limit, most = self.session_blocks(own_header), asked.session_blocks(header)
        if isinstance(policy, Window) and terms.window is None and limit is not None and most is not None:
            smaller = policy.window - max(0, most - limit) * self.pool.block_size
            if smaller >= max(policy.sinks, policy.window / 2):
                return Window(smaller, policy.sinks)
        if limit is not None and (most is None or most > limit):
            needs = "has no bound" if most is None else f"needs up to {most} blocks"
            cure = f"such a session {needs}, and one gets {limit} here: use a smaller window or fewer sinks"
            field = "policy" if most is None else "window"
            raise ProfileError(f"window.{field}", getattr(asked.window, field), cure)
        return asked.check_fit(header)


def load_profile(name_or_path: str, overrides: dict[str, Any] | None = None) -> Profile:
    """Read a built-in profile by name, or a TOML file by path.

    `overrides` maps "section.field" to a value. Raises ProfileError naming field, value and cure.
    """
    text, path = profile_text(name_or_path), Path(name_or_path)
    name = path.stem if path.suffix == ".toml" else name_or_path
    try:
        data = tomllib.loads(text)
    # Beside its own error the parser lets out those of a number too long and of brackets nested too deep.
    except (ValueError, RecursionError) as error:
        raise ProfileError("profile", name_or_path, f"mend the TOML: {error}") from None
    for key, value in (overrides or {}).items():
        section, _, field = key.partition(".")
        table = data.setdefault(section, {})
        if isinstance(table, dict):  # anything else is refused below, with its own message
            table[field] = value
    return parse_profile(name, data)


def profile_text(name_or_path: str) -> str:
    """The TOML of a built-in profile, by name, or of a file. ProfileError as of `load_profile`."""
    path = Path(name_or_path)
    return _read(path) if path.suffix == ".toml" else _built_in(name_or_path)


def parse_profile(name: str, data: dict[str, Any]) -> Profile:
    """Check `data` as the profile called `name`."""
    try:
        profile = Profile.model_validate({"name": name, **data})
    except ValidationError as error:
        raise _first_problem(error) from None
    _check_sound(profile.model)
    _check_chunk(profile)
    profile.check_fit(0)  # the header's length comes with the model; it can only ask for more
    return profile


def _check_sound(model: ModelSection) -> None:
    """ProfileError when the kind does not hear at that rate, or cannot speak."""
    kind = kind_of(model.kind)
    if kind.rate not in (None, model.rate):
        raise ProfileError("model.rate", model.rate, f"use {kind.rate}: that is what {model.kind} hears")
    if model.output == "audio" and kind.output == "text" and not is_own(model.kind):
        able = ", ".join(name for name, other in KINDS.items() if other.output == "audio")
        cure = f"{model.kind} answers in text; leave it out, or use a kind that speaks ({able}, or your own)"
        raise ProfileError("model.output", model.output, cure)


def _check_chunk(profile: Profile) -> None:
    """ProfileError when a frame of audio cannot be read in one piece, or is more than a window holds."""
    kind, beat = kind_of(profile.model.kind), profile.beat
    positions = math.ceil(round(kind.per_s * beat.frame_s, 6))
    if beat.prefill_tokens <= positions:
        cure = f"{beat.frame_s:g} s of audio are {positions} tokens or more; use more than that"
        raise ProfileError("beat.prefill_tokens", beat.prefill_tokens, cure)
    policy = profile.policy(0)
    if positions and not isinstance(policy, Unbounded) and policy.window < positions + beat.tau:
        cure = f"one frame brings {positions + beat.tau} tokens, its reply among them; use so many or more"
        raise ProfileError("window.window", policy.window, cure)


def profile_names() -> list[str]:
    """The built-in profiles, sorted."""
    return sorted(file.name[:-5] for file in _folder().iterdir() if file.name.endswith(".toml"))


def _folder() -> Any:
    """profiles/ of a checkout, or its copy inside an installed wheel."""
    inside = resources.files("metronome_cli") / "profiles"
    return inside if inside.is_dir() else Path(__file__).parents[2] / "profiles"


def _built_in(name: str) -> str:
    names = profile_names()
    if name not in names:
        raise ProfileError("profile", name, f"use one of {', '.join(names)}, or a path ending in .toml")
    return str((_folder() / f"{name}.toml").read_text("utf-8"))


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or no path at all
        raise ProfileError("profile", str(path), f"give a readable TOML file ({error})") from None


# A field that takes either of two kinds fails once for each; one sentence says it better.
_CURES = {
    "window.window": 'use 1 or more tokens, or seconds as "20 s"',
    "pool.blocks": f'use 1 to {MOST_BLOCKS} blocks, or "free" on a GPU',
    "window.sinks": 'use 0 or more tokens, or "header"',
    # And a pattern says less than an example.
    "server.origins": 'use a list of origins as ["https://app.example.org"], without a path, or ["*"]',
}


def _first_problem(error: ValidationError) -> ProfileError:
    problem = error.errors()[0]
    places = [str(part) for part in problem["loc"]][:2]
    field = ".".join(places)
    if problem["type"] == "extra_forbidden":
        cure = f"unknown key; known here: {', '.join(_known_keys(places[:-1]))}"
    elif problem["type"] == "model_type":
        cure = f"write a table: [{field}]"
    else:
        cure = _CURES.get(field, problem["msg"])
    return ProfileError(field, problem["input"], cure)


def _known_keys(section: list[str]) -> list[str]:
    model: object = Profile.model_fields[section[0]].annotation if section else Profile
    return list(model.model_fields) if isinstance(model, type) and issubclass(model, BaseModel) else []
