"""Audio and text in, text out, by one model: what is heard becomes embeddings among the text's own.

Knows:   whose turn it is, where audio stands in the model's chat format, what waits to be read.
Ignores: how audio becomes embeddings (a model's own ears), how calls read and speak (talk.py), sockets, time.

Each frame's audio is heard and appended at once, within the model's markers of audio: when a reply is asked
for, all but the last frame is in the cache. In mode `turn` a user's turn is open from the first speech (or
text) until a reply is asked for, by the caller or in a duplex call by a pause; of the silence before it only
the last frame is kept, and what is said during a reply waits for its end. In mode `free` every frame's audio
goes in, speech or not, and `tau` tokens come out, without end tokens.

What is in the cache cannot be taken back: a caller who clears what he said clears what was not read yet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, Protocol

import numpy as np
import torch
from torch import Tensor

from ..engine.decoder import Decoder
from ..errors import ProfileError
from ..frame import Failed, Frame, KvUsage, Prefilled, Refused, SessionId, Stalled, TickEvent
from ..profile import OWN, Profile, Terms
from ..window import Policy, Unbounded
from .chat import Chat
from .parts import Ears, State
from .pauses import Pauses
from .talk import Piece, Talk, Talks, owned

MOST_WAITING = 8192  # positions of audio that one call may have waiting; with a window, at most its length


class OmniEars(Ears[State], Protocol[State]):
    """Ears that say beforehand how much a frame becomes, and give embeddings of the backbone."""

    def positions(self, samples: int) -> int:
        """Most positions that so many samples become, by themselves."""
        ...


@dataclass(frozen=True, slots=True)
class Markers:
    """Where a model wants each frame's audio, as token ids.

    `inline`: in mode `free` audio goes in between what the model says, without a user's turn around it.
    `rests`, `says`: as in `Talks`.
    """

    before: list[int]
    after: list[int]
    inline: bool = False
    rests: frozenset[int] = frozenset()
    says: frozenset[int] = frozenset()


@dataclass(slots=True)
class _Turn:
    """A user's turn: groups of pieces that are read together, an audio between its markers being one."""

    groups: deque[list[Piece]] = field(default_factory=deque)  # not in the inbox yet
    begun: bool = False  # its opening is
    over: bool = False  # it is to be answered,
    most: int = 0  # in at most so many tokens
    typed: bool = False  # its latest group is text

    def add(self, group: list[Piece], typed: bool) -> None:
        self.groups.append(group)
        self.typed = typed

    def audio(self) -> int:
        """Positions of audio that wait."""
        return sum(len(piece) for group in self.groups for piece in group if isinstance(piece, Tensor))

    def ids(self) -> int:
        return sum(len(piece) for group in self.groups for piece in group if isinstance(piece, list))


@dataclass(slots=True)
class _Call(Generic[State]):
    """One session: what it hears with, and its turns that are not in its inbox yet."""

    talk: Talk
    ear: State
    pauses: Pauses = field(default_factory=Pauses)
    lead: list[Piece] = field(default_factory=list)  # the last silent frame before a turn
    turns: deque[_Turn] = field(default_factory=deque)  # the last may still be open

    @property
    def unread(self) -> int:
        """Characters of typed text, at least, that wait: a token has one or more. Empty texts count too."""
        return self.talk.inbox.ids + sum(turn.ids() + turn.over for turn in self.turns)

    @property
    def is_open(self) -> bool:
        """Whether a turn has begun that nobody is to answer yet."""
        return bool(self.turns) and not self.turns[-1].over

    def turn(self) -> _Turn:
        """The open turn; a new one where there is none."""
        if not self.is_open:
            self.turns.append(_Turn())
        return self.turns[-1]

    def hear(self, group: list[Piece]) -> None:
        """Add audio to the open turn; a new one begins with the silence before it."""
        groups = [group] if self.is_open else [some for some in (self.lead, group) if some]
        self.lead = []
        for some in groups:
            self.turn().add(some, typed=False)

    def end_turn(self, most: int) -> None:
        """Let the open turn be answered; without one the last frame of silence: the gate may have erred."""
        if not self.is_open:
            self.hear([])
        turn = self.turn()
        turn.over, turn.most = True, most
        self.pauses.reset()

    def forget(self) -> None:
        """Leave out what was said in the open turn and was not read yet."""
        if self.is_open:
            self.turns[-1].groups.clear()
        self.lead = []
        self.pauses.reset()

    def trim(self, most: int) -> None:
        """Drop the oldest audio that waits, until it is at most `most` positions."""
        over = sum(turn.audio() for turn in self.turns) - most
        for turn in self.turns:
            while over > 0 and turn.groups:
                over -= sum(len(piece) for piece in turn.groups.popleft() if isinstance(piece, Tensor))

    def own(self) -> None:
        """Let go of memory that other calls share."""
        self.talk.inbox.own()
        self.lead = [owned(piece) for piece in self.lead]
        for turn in self.turns:
            turn.groups = deque([owned(piece) for piece in group] for group in turn.groups)


@dataclass(frozen=True, slots=True)
class _Noticed:
    """What the gate and the caller tell of one frame."""

    spoke: bool
    over: int  # utterances that end with it
    ends: bool  # whether the ears are to hear all they have


class Omni(Generic[State]):
    """A `TickEngine`: ears and backbone of one model. A model's own class gives it its parts.

    `blocks`: of the pool, as for `Talks`.
    ProfileError when the profile's rate, window or pieces are too small for a frame of the model.
    """

    def __init__(
        self,
        profile: Profile,
        chat: Chat,
        decoder: Decoder,
        ears: OmniEars[State],
        markers: Markers,
        blocks: int | None = None,
    ) -> None:
        self._profile = profile
        self._chat = chat
        self._free = profile.model.mode == "free"
        self._ears = ears
        self._markers = markers
        self._wraps = not (self._free and markers.inline)
        self._most = profile.beat.prefill_tokens - 1  # read in a frame: the last sampled token goes in front
        check_frame(profile, chat, ears, markers)
        self._talks = Talks(profile, chat, decoder, markers.rests, markers.says, blocks)
        self._engine = self._talks.engine
        self._calls: dict[SessionId, _Call[State]] = {}

    def open(self, session: SessionId, seed: int, terms: Terms = OWN) -> Refused | None:
        talk = self._talks.open(session, seed, terms)
        if isinstance(talk, Refused):
            return talk
        try:
            check_window(talk.policy, self._profile, self._chat, self._ears, self._markers)
        except ProfileError:
            self._talks.close(session)
            raise
        self._calls[session] = _Call(talk, self._ears.open())
        return None

    def tick(self, frames: Sequence[Frame]) -> Iterator[TickEvent]:
        due = {frame.session: self._calls[frame.session] for frame in frames if frame.session in self._calls}
        frames = [frame for frame in frames if frame.session in due]
        noticed = {frame.session: self._notice(due[frame.session], frame) for frame in frames}
        heard = self._ears.hear(
            [call.ear for call in due.values()],
            [frame.audio for frame in frames],
            [notice.ends for notice in noticed.values()],
        )
        for frame, embedded_TE, is_sound in zip(frames, heard, _are_finite(heard), strict=True):
            if is_sound:
                self._take(due[frame.session], frame, embedded_TE, noticed[frame.session])
            else:
                del due[frame.session]
                yield Failed(frame.session, "its audio holds values that are no finite numbers")
        # Whoever was told of a failed call may have closed others meanwhile.
        talks = [call.talk for session, call in due.items() if self._calls.get(session) is call]
        for event in self._talks.speak(talks):
            match event:
                case Prefilled():
                    call, over = due[event.session], noticed[event.session].over
                    yield replace(event, over=over, unread=call.unread)
                case Stalled():
                    _reopen(due[event.session])
                    yield event
                case _:
                    yield event
        for call in due.values():
            call.own()

    def cancel(self, session: SessionId) -> None:
        self._talks.cancel(session)

    def close(self, session: SessionId) -> None:
        if call := self._calls.pop(session, None):
            del call.ear  # what it held is free at once, though a tick in progress still has the call
        self._talks.close(session)

    def blocks(self, session: SessionId) -> int:
        return self._talks.blocks(session)

    def policy(self, session: SessionId) -> Policy:
        return self._talks.policy(session)

    def usage(self) -> KvUsage:
        return self._talks.usage()

    def _notice(self, call: _Call[State], frame: Frame) -> _Noticed:
        """Listen for speech and pauses; in mode `free` nobody waits for them."""
        if frame.clear:
            call.forget()
            call.ear = self._ears.open()
        spoke, paused = (True, False) if self._free else call.pauses.take(frame.audio)
        over = max(frame.commit, int(paused)) if frame.duplex else frame.commit
        return _Noticed(spoke, over, ends=over > 0 or frame.reply is not None)

    def _take(self, call: _Call[State], frame: Frame, embedded_TE: Tensor, noticed: _Noticed) -> None:
        """Make turns of a frame, and move what can be read to the inbox."""
        heard: list[Piece] = [self._markers.before, embedded_TE, self._markers.after]
        audio = heard if len(embedded_TE) else []
        most = frame.most_tokens(self._profile.model.max_reply)
        if self._free:
            self._take_free(call, frame, audio, most)
        else:
            self._take_turn(call, frame, audio, most, noticed)
        self._feed(call)
        window = call.talk.policy
        call.trim(MOST_WAITING if isinstance(window, Unbounded) else min(window.window, MOST_WAITING))

    def _take_free(self, call: _Call[State], frame: Frame, audio: list[Piece], most: int) -> None:
        """All of a frame is one turn, at once."""
        if frame.texts:
            call.turn().add([self._chat.inside("\n".join(frame.texts))], typed=True)
        if audio:
            call.turn().groups.append(audio)
        if call.is_open:
            call.end_turn(most)

    def _take_turn(
        self, call: _Call[State], frame: Frame, audio: list[Piece], most: int, noticed: _Noticed
    ) -> None:
        if audio and (noticed.spoke or call.is_open or call.pauses.speaking):
            call.hear(audio)
        elif audio:
            call.lead = audio
        for text in frame.texts:
            turn = call.turn()
            turn.add([self._chat.inside("\n" + text if turn.typed else text)], typed=True)
            if frame.duplex:
                call.end_turn(most)
        is_answered = frame.duplex and bool(frame.texts)
        is_asked = frame.reply is not None and not is_answered
        if is_asked or (frame.duplex and noticed.over and call.is_open):
            call.end_turn(most)

    def _feed(self, call: _Call[State]) -> None:
        """Move turns to the inbox: in mode `free` all, else the next one once the reply is over.

        What no piece has room for in this frame stays out, where the oldest audio can still be dropped.
        """
        talk = call.talk
        while call.turns and (self._free or not talk.speaking) and len(talk.inbox) <= self._most:
            turn = call.turns[0]
            if not turn.begun and self._wraps:
                talk.inbox.add(self._chat.opens(talk.after))
                talk.after = "turn"
            turn.begun = True
            while turn.groups and len(talk.inbox) <= self._most:
                for piece in turn.groups.popleft():
                    talk.inbox.add(piece)
            if turn.groups or not turn.over:
                return
            call.turns.popleft()
            self._ask(talk, turn)

    def _ask(self, talk: Talk, turn: _Turn) -> None:
        """All of a turn is in the inbox: let it be answered. Free calls say on where only audio came in."""
        if self._wraps:
            talk.inbox.add(self._chat.asks)
            talk.after = "answer"
        if turn.typed or not self._free:
            self._talks.answer(talk, turn.most)


def check_frame(profile: Profile, chat: Chat, ears: OmniEars[State], markers: Markers) -> Policy:
    """What a call is held on. ProfileError when its audio is of another rate, or a frame does not fit."""
    if profile.model.rate != ears.rate:
        raise ProfileError("model.rate", profile.model.rate, f"use {ears.rate}: that is what the model hears")
    tokens, room = frame_tokens(profile, chat, ears, markers), profile.beat.prefill_tokens
    if room <= tokens:
        heard = f"{profile.beat.frame_s:g} s of audio are {tokens} tokens with their markers"
        cure = f"{heard}; use {tokens + 1} or more"
        raise ProfileError("beat.prefill_tokens", room, cure)
    policy = profile.check_fit(len(chat.header))
    check_window(policy, profile, chat, ears, markers)
    return policy


def check_window(
    policy: Policy, profile: Profile, chat: Chat, ears: OmniEars[State], markers: Markers
) -> None:
    """ProfileError when a window holds less than what one frame brings and the model says to it."""
    tokens = frame_tokens(profile, chat, ears, markers) + profile.beat.tau
    if not isinstance(policy, Unbounded) and policy.window < tokens:
        cure = f"one frame brings {tokens} tokens, its reply among them; use {tokens} or more"
        raise ProfileError("window.window", policy.window, cure)


def frame_tokens(profile: Profile, chat: Chat, ears: OmniEars[State], markers: Markers) -> int:
    """What the audio of one frame makes a call read, markers and turns included."""
    audio = ears.positions(round(profile.beat.frame_s * ears.rate))
    around = len(markers.before) + len(markers.after)
    if profile.model.mode == "free" and not markers.inline:
        around += len(chat.opens("answer")) + len(chat.asks)
    return audio + around


def _are_finite(heard: Sequence[Tensor]) -> list[bool]:
    """Of each call, whether all of its embeddings are numbers; one copy from the device."""
    if not any(map(len, heard)):
        return [True] * len(heard)
    finite_T = torch.isfinite(torch.cat(list(heard))).all(-1).tolist()
    ends = np.cumsum([len(some) for some in heard]).tolist()
    return [all(finite_T[end - len(some) : end]) for some, end in zip(heard, ends, strict=True)]


def _reopen(call: _Call[State]) -> None:
    """What a stalled call was reading is lost: its turn begins anew, unless the cache has it open."""
    if call.turns and call.turns[0].begun:
        call.turns[0].begun = call.talk.after == "turn"
