"""Sessions: stalls, cancels, sampling, and requests that do not fit together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from transformers import GenerationConfig

from metronome_cli.engine.eager import Done, EagerSteps
from metronome_cli.engine.engine import Engine
from metronome_cli.engine.kv_pool import Narrow
from metronome_cli.engine.rope import Rope
from metronome_cli.engine.rows import Row
from metronome_cli.engine.sampling import Sampling
from metronome_cli.engine.weights import load_decoder
from metronome_cli.errors import ProfileError
from metronome_cli.window import Policy, Recycle, Unbounded, Window

from .conftest import Tiny, save_tiny

NOTHING = torch.empty(0, dtype=torch.long)
SMALL = Window(12, 4)
PROMPT = torch.tensor([5, 17, 80, 3, 44])


def small_engine(llama: Tiny, blocks: int = 40, max_append: int = 8) -> Engine:
    return Engine(load_decoder(llama.folder), blocks, 4, max_append)


def opened(engine: Engine, policy: Policy = SMALL, sampling: Sampling | None = None) -> int:
    session = engine.open(policy, sampling=sampling)
    assert session is not None
    return session


def say(engine: Engine, session: int, count: int, prompt: torch.Tensor = PROMPT) -> list[int]:
    """Prefill a prompt and decode on: `count` tokens."""
    first = engine.step([session], [len(prompt)], prompt, sample=[True]).ids[0]
    rest = [engine.step([session], [0], NOTHING, sample=[True]).ids[0] for _ in range(count - 1)]
    return [token for token in (first, *rest) if token is not None]


def undisturbed(llama: Tiny, count: int) -> list[int]:
    """What an unbounded session says in an engine of its own."""
    engine = small_engine(llama)
    return say(engine, opened(engine, Unbounded()), count)


def test_greedy_decoding_equals_transformers_generate(tiny: Tiny) -> None:
    engine = Engine(load_decoder(tiny.folder), 40, 4, 8)
    got = say(engine, opened(engine, Unbounded()), 12)
    how = GenerationConfig(max_new_tokens=12, do_sample=False, eos_token_id=None)
    assert got == tiny.model.generate(PROMPT[None], how)[0, 5:].tolist()  # type: ignore[operator]


def test_the_sampled_token_goes_before_the_next_input(llama: Tiny) -> None:
    engine = small_engine(llama)
    by_itself, by_hand = opened(engine), opened(engine)
    sampled = engine.step([by_itself, by_hand], [5, 5], PROMPT.repeat(2), sample=[True, False]).ids[0]
    assert sampled is not None
    one = engine.step([by_itself], [2], PROMPT[:2])
    two = engine.step([by_hand], [3], torch.tensor([sampled, *PROMPT[:2]]))
    assert one.appended == two.appended == [3]
    torch.testing.assert_close(one.hidden, two.hidden)


def test_a_cancelled_token_never_enters_the_cache(llama: Tiny) -> None:
    engine = small_engine(llama)
    cancelled, silent = opened(engine), opened(engine)
    engine.step([cancelled, silent], [5, 5], PROMPT.repeat(2), sample=[True, False])
    engine.cancel(cancelled)
    output = engine.step([cancelled, silent], [2, 2], PROMPT[:2].repeat(2))
    assert output.appended == [2, 2]
    torch.testing.assert_close(output.hidden[:2], output.hidden[2:])


def test_embeddings_do_what_their_ids_do(llama: Tiny) -> None:
    engine = small_engine(llama)
    by_id, by_embedding = opened(engine), opened(engine)
    one = engine.step([by_id], [5], PROMPT)
    two = engine.step([by_embedding], [5], engine.decoder.embed(PROMPT))
    torch.testing.assert_close(one.hidden, two.hidden)


def test_an_unbounded_session_stalls_alone_drops_its_input_and_goes_on(llama: Tiny) -> None:
    engine = small_engine(llama, blocks=12)
    greedy, late, windowed = (
        opened(engine, Unbounded()),
        opened(engine, Unbounded()),
        opened(engine, Window(8, 0)),
    )
    while not engine.step([greedy], [5], PROMPT).stalled[0]:
        engine.pool.check()
    output = engine.step([late, windowed], [5, 5], PROMPT.repeat(2), sample=[True, True])
    assert output.stalled == [True, False]
    assert output.appended == [0, 5]
    assert output.ids[0] is None
    assert output.ids[1] is not None
    assert len(output.hidden) == 5
    engine.close(greedy)
    assert say(engine, late, 3) == undisturbed(llama, 3)


def test_a_stall_in_the_middle_of_a_reply_keeps_what_was_said(llama: Tiny) -> None:
    engine = small_engine(llama, blocks=2)
    session = opened(engine, Unbounded())
    said = say(engine, session, 4)  # 5 + 3 tokens fill both blocks; the 4th waits outside
    assert engine.step([session], [0], NOTHING, sample=[True]).stalled == [True]
    assert said == undisturbed(llama, 4)


def test_a_reused_block_shows_nothing_of_its_last_tenant(llama: Tiny) -> None:
    engine = small_engine(llama, blocks=8)
    stranger = opened(engine)
    engine.step([stranger], [8], torch.full((8,), 11))
    engine.memory.fill(list(range(8)), float("nan"))
    engine.close(stranger)
    assert say(engine, opened(engine, Unbounded()), 6) == undisturbed(llama, 6)


def test_opening_beyond_the_pool_is_a_plain_no(llama: Tiny) -> None:
    engine = small_engine(llama, blocks=12)
    assert engine.open(Window(12, 4)) is not None  # 1 + 5 + 1 blocks
    assert engine.open(Window(12, 4)) is None
    engine.pool.check()


def test_a_session_number_is_never_used_twice(llama: Tiny) -> None:
    engine = small_engine(llama)
    first = opened(engine)
    engine.close(first)
    engine.close(first)
    assert opened(engine) != first


@pytest.mark.parametrize(
    ("lengths", "tokens", "message"),
    [
        ([5, 2], 6, "do not fit together"),
        ([9, 0], 9, "at most 8"),
        ([5], 5, "do not fit together"),
    ],
)
def test_a_request_that_does_not_fit_changes_nothing(
    llama: Tiny, lengths: list[int], tokens: int, message: str
) -> None:
    engine = small_engine(llama)
    sessions = [opened(engine), opened(engine)]
    with pytest.raises(ValueError, match=message):
        engine.step(sessions, lengths, torch.ones(tokens, dtype=torch.long))
    assert engine.pool.leased == 0


def test_a_closed_or_doubled_session_is_an_error_that_changes_nothing(llama: Tiny) -> None:
    engine = small_engine(llama)
    session = opened(engine)
    for sessions in ([session, session], [session, 999]):
        with pytest.raises(ValueError, match="open and named once"):
            engine.step(sessions, [1, 1], PROMPT[:2])
    with pytest.raises(ValueError, match="nothing to append cannot sample"):
        engine.step([session], [0], NOTHING, sample=[True])
    assert engine.pool.leased == 0


class AheadSteps(EagerSteps):
    """Steps on the CPU that may begin before their tokens are told, as on a device."""

    can_run_ahead = True
    _last: Done

    def begin(self, rows: Sequence[Row]) -> Done:
        for row in rows:
            if row.after is not None:
                row.ids = [self._last.sampled[row.after]]
        self._last = super().begin(rows)
        return self._last


def ahead_engine(llama: Tiny) -> Engine:
    engine = small_engine(llama)
    engine._steps = AheadSteps(engine.decoder, engine.memory)
    return engine


@pytest.mark.parametrize(
    ("sessions", "lengths", "tokens", "sample", "message"),
    [
        ([1, 2], [0, 0], 1, [True, True], "do not fit together"),
        ([1, 2], [0], 0, [True], "do not fit together"),
        ([1, 1], [0, 0], 0, [True, True], "open and named once"),
        ([1, 9], [0, 0], 0, [True, True], "open and named once"),
        ([1, 2], [9, 0], 9, [True, True], "at most 8"),
        ([1, 3], [0, 0], 0, [True, True], "nothing to append cannot sample"),
    ],
)
def test_a_request_that_does_not_fit_leaves_what_was_begun_ahead(
    llama: Tiny, sessions: list[int], lengths: list[int], tokens: int, sample: list[bool], message: str
) -> None:
    told = []
    for engine, ahead in ((small_engine(llama), False), (ahead_engine(llama), True)):
        both = [opened(engine, Unbounded()), opened(engine, Unbounded())]
        opened(engine)  # never spoken to
        said = [engine.step(both, [5, 5], PROMPT.repeat(2), sample=[True, True], ahead=ahead).ids]
        with pytest.raises(ValueError, match=message):
            engine.step(sessions, lengths, torch.ones(tokens, dtype=torch.long), sample=sample)
        said += [engine.step(both, [0, 0], NOTHING, sample=[True, True], ahead=ahead).ids for _ in range(3)]
        told.append(said)
    assert told[0] == told[1]


def test_an_append_after_a_step_begun_ahead_may_be_as_long_as_ever(llama: Tiny) -> None:
    engine = ahead_engine(llama)
    session = opened(engine)
    engine.step([session], [5], PROMPT, sample=[True], ahead=True)
    # The sampled token is in the cache already, so that it takes none of the eight places.
    assert engine.step([session], [8], torch.ones(8, dtype=torch.long)).appended == [8]


def test_a_recycle_that_leaves_no_room_for_an_append_is_refused(llama: Tiny) -> None:
    with pytest.raises(ProfileError, match="use at most 4"):
        small_engine(llama).open(Recycle(12, 5))


def test_explicit_rotary_positions_are_used_and_counted_on_from(llama: Tiny) -> None:
    engine = small_engine(llama)
    shifted, plain = opened(engine, Unbounded()), opened(engine, Unbounded())
    engine.step([shifted], [5], PROMPT, rotary=torch.arange(100, 105))
    engine.step([plain], [5], PROMPT)
    output = engine.step([shifted, plain], [3, 3], PROMPT[:3].repeat(2))
    torch.testing.assert_close(output.hidden[:3], output.hidden[3:], rtol=0, atol=1e-4)
    moved = engine.step([shifted, plain], [1, 1], PROMPT[:1].repeat(2), rotary=torch.tensor([300, 8]))
    assert (moved.hidden[0] - moved.hidden[1]).abs().max() > 1e-2


def test_each_axis_of_a_position_drives_its_own_frequencies() -> None:
    inverse = torch.tensor([1.0, 0.5, 0.25, 0.125])
    rope = Rope(inverse, torch.tensor([0, 1, 2, 1]))
    turned = rope.at(torch.tensor([[3, 5, 7]]))
    torch.testing.assert_close(turned.cos[0, 0], (torch.tensor([3.0, 5.0, 7.0, 5.0]) * inverse).cos())
    assert rope.axes == 3


def test_angles_keep_their_precision_at_a_hundred_million() -> None:
    position = 10**8 + 1
    turned = Rope(torch.tensor([1.0, 0.1])).at(torch.tensor([[position]]))
    want = (torch.tensor([1.0, 0.1]).double() * position).sin().float()
    torch.testing.assert_close(turned.sin[0, 0], want, rtol=0, atol=1e-6)


def test_sampling_depends_on_the_seed_and_not_on_the_neighbours(llama: Tiny) -> None:
    warm = Sampling(temperature=1.0, top_p=0.9, seed=3)
    engine = small_engine(llama)
    alone = say(engine, opened(engine, Unbounded(), warm), 8)
    again, other = (opened(engine, Unbounded(), s) for s in (warm, Sampling(1.0, 0.9, seed=4)))
    both: dict[int, list[int | None]] = {again: [], other: []}
    lengths, inputs = [5, 5], PROMPT.repeat(2)
    for _ in range(8):
        ids = engine.step([again, other], lengths, inputs, sample=[True, True]).ids
        both[again].append(ids[0])
        both[other].append(ids[1])
        lengths, inputs = [0, 0], NOTHING
    assert both[again] == alone
    assert both[other] != alone


def test_a_suppressed_token_is_never_said(llama: Tiny) -> None:
    engine = small_engine(llama)
    favourite = say(engine, opened(engine), 1)[0]
    for temperature in (0.0, 1.0):
        muted = Sampling(temperature=temperature, suppress=(favourite,))
        assert favourite not in say(engine, opened(engine, sampling=muted), 20)


def test_keys_and_values_may_be_kept_in_another_dtype(llama: Tiny) -> None:
    decoder = load_decoder(llama.folder)
    half = Engine(decoder, 40, 4, 8, kv_dtype=torch.bfloat16)
    whole = Engine(decoder, 40, 4, 8)
    assert half.memory.bytes * 2 == whole.memory.bytes
    one = half.step([opened(half)], [5], PROMPT).hidden
    two = whole.step([opened(whole)], [5], PROMPT).hidden
    relative = float((one - two).norm() / two.norm())
    assert 0 < relative < 0.05


class AnyEngineCalls(RuleBasedStateMachine):
    """Real steps over sessions of every policy, in any order, with a pool that is too small for them."""

    folder: Path

    @initialize(blocks=st.integers(2, 30))
    def start(self, blocks: int) -> None:
        self.engine = Engine(load_decoder(self.folder), blocks, 4, 6)
        self.engine.memory.fill(list(range(blocks)), float("nan"))
        self.sessions: dict[int, Policy] = {}

    @rule(policy=st.sampled_from([Unbounded(), Window(9, 5), Window(8, 0), Recycle(14, 6)]))
    def open(self, policy: Policy) -> None:
        if (session := self.engine.open(policy)) is not None:
            self.sessions[session] = policy

    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        chosen = (
            data.draw(st.lists(st.sampled_from(sorted(self.sessions)), unique=True)) if self.sessions else []
        )
        lengths = [data.draw(st.integers(0, 5)) for _ in chosen]
        sample = [length > 0 and data.draw(st.booleans()) for length in lengths]
        inputs = torch.full((sum(lengths),), 7)
        output = self.engine.step(chosen, lengths, inputs, sample=sample)
        for session, stalled in zip(chosen, output.stalled, strict=True):
            assert not stalled or isinstance(self.sessions[session], Unbounded)
        assert output.hidden.isfinite().all()

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        if self.sessions:
            self.engine.cancel(data.draw(st.sampled_from(sorted(self.sessions))))

    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        if self.sessions:
            session = data.draw(st.sampled_from(sorted(self.sessions)))
            del self.sessions[session]
            self.engine.close(session)

    @invariant()
    def accounts_add_up(self) -> None:
        if hasattr(self, "engine"):
            self.engine.pool.check()
            assert self.engine.pool.leased == sum(self.engine.held(session) for session in self.sessions)


def test_any_sequence_of_open_step_cancel_close_and_stall_keeps_the_accounts(tmp_path: Path) -> None:
    class Calls(AnyEngineCalls):
        folder = save_tiny(tmp_path, "llama", num_hidden_layers=1).folder

    run_state_machine_as_test(
        Calls, settings=settings(max_examples=25, stateful_step_count=25, deadline=None)
    )


def test_narrow_windows_are_refused_where_no_kernel_reads_them(llama: Tiny) -> None:
    with pytest.raises(ProfileError, match=r"pool.kv = 'fp8': only the kernels on a CUDA device read it"):
        Engine(load_decoder(llama.folder), 40, 4, 8, kv_dtype=Narrow(4))
