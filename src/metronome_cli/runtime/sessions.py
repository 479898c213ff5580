"""Live calls: what each was sent since its last tick, and the list of them all.

Knows:   pending audio and text with their limits, the sample and frame counts of a call, who is idle.
Ignores: sockets, events, what a model makes of a frame.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError, ProfileError
from ..frame import Frame, Refused, SessionId, TickEngine
from ..profile import Terms
from ..speech import RATE
from .admission import Admission, Cap, Measured
from .mute import Unanswered

MAX_PENDING_CHARACTERS = 65_536  # of typed text, waiting for one tick
MAX_PENDING_TEXTS = 256

_SILENCE = np.zeros(0, np.float32)


class Session:
    """One live call, between two ticks. Times are monotonic seconds; `rate` is its audio's, in samples/s."""

    def __init__(self, session: SessionId, opened_at: float, max_pending_s: float, rate: int = RATE) -> None:
        self.id = session
        self.opened_at = opened_at
        self.last_input = opened_at  # when audio or text last came
        self.frames = 0  # cut so far
        self.samples = 0  # of audio, cut so far
        self.cancelled = False  # its reply was abandoned in this tick: nothing more of it goes out
        self.terms = Terms()
        self.duplex = True  # the model answers whenever it sees fit,
        self.most = 0  # in at most so many tokens; 0 leaves that to it
        self.unread = 0  # characters of text that the model has taken and not read yet
        self.unanswered = Unanswered(rate)
        self._rate = rate
        self._max_pending_s = max_pending_s
        self._asked = False  # ever for a reply
        self._audio: list[NDArray[np.float32]] = []
        self._ended = 0  # pieces of _audio that belong to utterances that are over
        self._waiting = 0  # samples in _audio
        self._texts: list[str] = []
        self._characters = 0  # in _texts
        self._commits = 0
        self._clear = False
        self._reply: int | None = None

    @property
    def untouched(self) -> bool:
        """Whether nothing was ever said or asked for in this call."""
        return not (self.samples or self._waiting or self._asked or self.last_input > self.opened_at)

    @property
    def audio_ms(self) -> float:
        """Milliseconds of audio, cut so far."""
        return self.samples * 1000 / self._rate

    def hear(self, audio: NDArray[np.float32], now: float) -> None:
        """Take mono samples at the session's rate; InputError, and none taken, when too much would wait."""
        waiting = self._waiting + len(audio)
        if waiting > self._max_pending_s * self._rate:
            raise InputError(
                "buffer_full",
                "audio",
                f"{waiting / self._rate:.2f} s",
                f"at most {self._max_pending_s:g} s (server.max_pending_s) may wait for a tick; send at the "
                "pace of speech, or a recording in parts, a tick for each",
            )
        self._audio.append(audio)
        self._waiting = waiting
        if len(audio):
            self.last_input = now

    def read(self, text: str, now: float) -> None:
        """Take a typed message; InputError, and nothing taken, when too much would wait."""
        waiting = self.unread + self._characters + len(text)
        if waiting > MAX_PENDING_CHARACTERS:
            raise InputError(
                "buffer_full",
                "text",
                f"{waiting} characters",
                f"at most {MAX_PENDING_CHARACTERS} may wait to be read; send less, or wait for replies",
            )
        if len(self._texts) >= MAX_PENDING_TEXTS:
            raise InputError(
                "buffer_full",
                "text",
                f"{len(self._texts) + 1} messages",
                f"at most {MAX_PENDING_TEXTS} may wait for a tick; send fewer",
            )
        self._texts.append(text)
        self._characters += len(text)
        if text:
            self.last_input = now

    def commit(self) -> None:
        """The utterance is over. No sign of life: a client may repeat it for ever."""
        self._commits += 1
        self._ended = len(self._audio)

    def clear(self) -> None:
        """Forget the utterance so far. Its audio counts as consumed: it was due all the same."""
        gone = sum(map(len, self._audio[self._ended :]))
        del self._audio[self._ended :]
        self.samples += gone
        self._waiting -= gone
        self._clear = self._clear or not self._commits  # else what came in earlier frames is committed

    def ask(self, most_tokens: int) -> None:
        """A reply is wanted, of at most so many tokens; 0 leaves that to the model."""
        self._reply, self._asked = most_tokens, True

    def cancel(self) -> None:
        """Nothing more of the reply goes out, nor of one that was asked for and has not begun."""
        self.cancelled, self._reply = True, None
        self.unanswered.forgive()

    def cut(self) -> Frame:
        """All that came since the last cut, as the next frame."""
        audio = np.concatenate(self._audio) if self._audio else _SILENCE
        frame = Frame(
            self.id,
            audio,
            texts=tuple(self._texts),
            commit=self._commits,
            clear=self._clear,
            duplex=self.duplex,
            most=self.most,
            reply=self._reply,
        )
        self.frames += 1
        self.samples += len(audio)
        self._audio, self._ended, self._waiting = [], 0, 0
        self.unread += self._characters  # until the model says how much of it it has read
        self._texts, self._characters = [], 0
        self._clear = self.cancelled = False
        self._commits, self._reply = 0, None
        self.unanswered.hear(frame)
        return frame


class Sessions:
    """All live calls of one engine, by number. One thread uses it, so opening a call is atomic."""

    def __init__(
        self,
        engine: TickEngine,
        admission: Admission,
        max_pending_s: float,
        seed: int,
        opened: int = 0,
        rate: int = RATE,
    ) -> None:
        self._engine = engine
        self._admission = admission
        self._max_pending_s = max_pending_s
        self._seed = seed
        self._rate = rate
        self._live: dict[SessionId, Session] = {}
        self._opened = opened  # the next is numbered from here: numbers are never used twice

    def __iter__(self) -> Iterator[Session]:
        return iter(tuple(self._live.values()))

    def __len__(self) -> int:
        return len(self._live)

    def find(self, session: SessionId) -> Session | None:
        """The call of that number, if it is live."""
        return self._live.get(session)

    @property
    def cap(self) -> Cap:
        """Most calls at a time, as the latest tick left it."""
        return self._admission.cap

    def observe(self, seen: Measured) -> Cap:
        """A tick is over: the cap from here on."""
        self._admission.observe(seen)
        return self._admission.cap

    def open(self, now: float) -> Session | Refused:
        """Let a new call in on the profile's terms, with its blocks reserved, or say why not."""
        refused = self._admission.decide(len(self._live))
        if refused:
            return refused
        self._opened += 1
        number = self._opened
        refused = self._engine.open(number, self._seed_of(number), Terms())
        if refused:
            return refused
        self._live[number] = Session(number, now, self._max_pending_s, self._rate)
        return self._live[number]

    def cancel(self, session: SessionId) -> None:
        """Abandon the reply in progress; the call and its cache stay."""
        if found := self._live.get(session):
            found.cancel()
            self._engine.cancel(session)

    def settle(self, session: Session, terms: Terms) -> None:
        """Give a call in which nothing was said yet its own terms, or leave it as it is.

        ProfileError when the profile does not give so much; InputError when it is too late, or the pool full.
        A model that does not take the call back on the terms it had has lost it: it is live no more.
        """
        if not session.untouched:
            raise InputError("session_started", "session", "begun", "ask before the first audio or text")
        seed = self._seed_of(session.id)
        self._engine.close(session.id)
        try:
            refused = self._engine.open(session.id, seed, terms)
        except ProfileError:
            self._take_back(session, seed)
            raise
        if refused:
            self._take_back(session, seed)
            cure = "the KV pool has no room for that now; ask for less, or later"
            raise InputError(refused.reason, "session.metronome", terms.model_dump(exclude_none=True), cure)
        session.terms = terms

    def _take_back(self, session: Session, seed: int) -> None:
        if self._engine.open(session.id, seed, session.terms):
            del self._live[session.id]

    def close(self, session: SessionId) -> None:
        """End a call and give back its blocks; one that is not live is no error."""
        if self._live.pop(session, None):
            self._engine.close(session)

    def idle(self, now: float, idle_s: float) -> list[Session]:
        """Calls that sent no audio and no text for `idle_s` seconds."""
        return [session for session in self if now - session.last_input >= idle_s]

    def _seed_of(self, number: SessionId) -> int:
        # Mixed, not added: runs with neighbouring seeds must not share the randomness of their calls.
        return int(np.random.SeedSequence((self._seed, number)).generate_state(1)[0])
