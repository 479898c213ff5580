"""A profile that loads can work; one that cannot is refused with field, value and cure."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metronome_cli.errors import ProfileError
from metronome_cli.profile import Profile, Terms, load_profile, parse_profile, profile_names
from metronome_cli.window import Recycle, Unbounded, Window

ROOT = Path(__file__).parents[1]


def refused(data: dict[str, Any]) -> ProfileError:
    with pytest.raises(ProfileError) as caught:
        parse_profile("mine", data)
    return caught.value


@pytest.mark.parametrize("name", profile_names())
def test_what_a_caller_misses_while_he_may_be_away_is_kept(name: str) -> None:
    profile = load_profile(name)
    if profile.model.speaks and profile.model.mode == "free":
        assert profile.server.replay_bytes > 80_000 * profile.server.grace_s  # sound, its words, its events


@pytest.mark.parametrize("name", profile_names())
def test_a_built_in_profile_works_with_a_header_of_usual_length(name: str) -> None:
    profile = load_profile(name)
    assert profile.name == name
    assert profile.about
    profile.check_fit(header_tokens=40)


def test_the_default_profile_is_a_512_token_window_behind_the_header() -> None:
    laptop = load_profile("laptop")
    assert laptop.policy(31) == Window(512, 31)
    assert (laptop.beat.frame_s, laptop.beat.tau, laptop.window.positions) == (2.0, 6, "anchored")


def test_the_planning_page_asks_for_as_many_blocks_as_its_calls_reserve() -> None:
    laptop, header = load_profile("laptop"), 18
    page = (ROOT / "docs" / "capacity.md").read_text("utf-8")
    each, of_header = laptop.session_blocks(header), laptop.session_blocks(0)
    assert each is not None
    assert f"reserves {each}, which are the {of_header} that" in page
    assert f"header of {header} tokens" in page
    assert f"--max-sessions 16 --blocks {16 * each}`" in page


@pytest.mark.assets("smollm2-135m-instruct")
def test_the_header_that_the_planning_page_counts() -> None:
    from metronome_cli.models.assets import locate
    from metronome_cli.models.chat import Chat

    model = load_profile("laptop").model
    assert len(Chat(locate(model.thinker), model.header).header) == 18


@pytest.mark.parametrize(
    ("data", "field", "says"),
    [
        ({"blocks": 3}, "blocks", "unknown key; known here: name, about, model"),
        ({"pool": {"blocs": 3}}, "pool.blocs", "unknown key; known here: blocks, block_size"),
        ({"pool": 3}, "pool", "write a table: [pool]"),
        ({"window": {"window": 0}}, "window.window", '1 or more tokens, or seconds as "20 s"'),
        ({"window": {"window": "20 minutes"}}, "window.window", 'seconds as "20 s"'),
        ({"window": {"window": "0 s"}}, "window.window", "1 or more"),
        ({"window": {"sinks": "all"}}, "window.sinks", '"header"'),
        ({"window": {"sinks": 513}}, "window.sinks", "use 512 or fewer"),
        ({"window": {"policy": "ring"}}, "window.policy", "'window', 'unbounded' or 'recycle'"),
        ({"window": {"policy": "recycle", "window": 32}}, "window.window", "64 or more"),
        ({"window": {"policy": "recycle", "carry": 480}}, "window.carry", "at most"),
        ({"pool": {"blocks": 36}}, "pool.blocks", "needs 39 blocks"),
        ({"pool": {"blocks": 10**20}}, "pool.blocks", "10000000"),
        ({"window": {"window": "9" * 400 + " s"}}, "window.window", "use"),
        ({"beat": {"frame_s": 0}}, "beat.frame_s", "greater than or equal to 0.001"),
        ({"beat": {"frame_s": 1e-300}}, "beat.frame_s", "greater than or equal to 0.001"),
        ({"beat": {"frame_s": 1e300}}, "beat.frame_s", "less than or equal to 1"),
        ({"beat": {"frame_s": True}}, "beat.frame_s", "not true or false"),
        ({"admission": {"max_sessions": True}}, "admission.max_sessions", "not true or false"),
        ({"admission": {"target_share": 1e-300}}, "admission.target_share", "greater than or equal to 0.01"),
        ({"window": {"window": True}}, "window.window", "1 or more tokens"),
        ({"window": {"sinks": False}}, "window.sinks", '0 or more tokens, or "header"'),
        ({"pool": True}, "pool", "write a table: [pool]"),
        ({"beat": {"frame_s": float("inf")}}, "beat.frame_s", "finite"),
        ({"beat": {"frame_s": float("nan")}}, "beat.frame_s", "finite"),
        ({"server": {"port": 65536}}, "server.port", "65535"),
        ({"model": {"kind": "whisper"}}, "model.kind", "use one of cascade, text, null,"),
        ({"model": {"kind": "own_model.Toy"}}, "model.kind", '"package.module:Class" of your own'),
        ({"model": {"kind": ":Toy"}}, "model.kind", '"package.module:Class" of your own'),
        ({"model": {"rate": 8000}}, "model.rate", "16000 or 24000"),
        ({"model": {"rate": 24_000}}, "model.rate", "use 16000: that is what cascade hears"),
        ({"model": {"kind": "moshi"}}, "model.rate", "use 24000: that is what moshi hears"),
        (
            {"model": {"kind": "qwen2.5-omni"}, "beat": {"prefill_tokens": 50}},
            "beat.prefill_tokens",
            "are 50",
        ),
        (
            {"model": {"kind": "minicpm-o"}, "beat": {"tau": 12}, "window": {"window": 31, "sinks": 0}},
            "window.window",
            "one frame brings 32 tokens",
        ),
        ({"model": {"output": "audio"}}, "model.output", "a kind that speaks (moshi, or your own)"),
        ({"model": {"output": "video"}}, "model.output", "'text' or 'audio'"),
        ({"model": {"temperature": -0.1}}, "model.temperature", "use 0 (greedy), or 0.01 to 100"),
        ({"model": {"temperature": 1e-300}}, "model.temperature", "use 0 (greedy), or 0.01 to 100"),
        ({"model": {"temperature": 1e300}}, "model.temperature", "use 0 (greedy), or 0.01 to 100"),
        ({"model": {"top_p": 1e-300}}, "model.top_p", "greater than or equal to 0.001"),
        ({"server": {"drain_s": 1e300}}, "server.drain_s", "less than or equal to 1"),
    ],
)
def test_a_bad_value_is_refused_with_field_and_cure(data: dict[str, Any], field: str, says: str) -> None:
    error = refused(data)
    assert error.field == field
    assert says in error.cure


def test_the_smallest_pool_that_holds_one_session_is_taken() -> None:
    profile = parse_profile("mine", {"pool": {"blocks": 37}, "window": {"sinks": 0}})
    assert profile.session_blocks(0) == 37


def test_a_header_that_fits_neither_window_nor_pool_is_refused_once_its_length_is_known() -> None:
    profile = parse_profile("mine", {"pool": {"blocks": 38}})
    assert profile.check_fit(16) == Window(512, 16)
    with pytest.raises(ProfileError, match=r"pool\.blocks = 38: .* needs 39 blocks"):
        profile.check_fit(17)
    with pytest.raises(ProfileError, match=r"513 pinned tokens are more than the window"):
        profile.check_fit(513)


@pytest.mark.parametrize(("text", "frames"), [("20 s", 10), ("20s", 10), ("19.5 s", 10), ("0.1 s", 1)])
def test_seconds_become_whole_frames_of_the_most_a_frame_can_add(text: str, frames: int) -> None:
    profile = parse_profile(
        "mine", {"window": {"window": text}, "beat": {"frame_s": 2, "tau": 6, "prefill_tokens": 64}}
    )
    assert profile.policy(0) == Window(frames * (64 + 6), 0)


def test_each_policy_is_built_from_its_fields() -> None:
    def policy(**window: object) -> object:
        return parse_profile("mine", {"window": window}).policy(9)

    assert policy(policy="unbounded") == Unbounded()
    assert policy(policy="recycle", window=256) == Recycle(256, 128)
    assert policy(policy="recycle", window=256, carry=0) == Recycle(256, 0)
    assert policy(window=256, sinks=4) == Window(256, 4)
    assert policy(window=256) == Window(256, 9)


def test_an_unbounded_session_fits_any_pool() -> None:
    profile = parse_profile("mine", {"window": {"policy": "unbounded"}, "pool": {"blocks": 1}})
    assert profile.session_blocks(0) is None


def test_a_profile_cannot_be_changed_after_it_was_checked() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load_profile("laptop").pool.blocks = 3


def test_overrides_win_over_the_file_and_are_checked_like_it() -> None:
    profile = load_profile(
        "laptop", {"window.policy": "unbounded", "pool.blocks": 99, "admission.max_sessions": 2}
    )
    assert (profile.window.policy, profile.pool.blocks, profile.admission.max_sessions) == (
        "unbounded",
        99,
        2,
    )
    with pytest.raises(ProfileError, match=r"pool\.blocks = 3"):
        load_profile("laptop", {"pool.blocks": 3})
    with pytest.raises(ProfileError, match=r"pool\.blocs = 3: unknown key"):
        load_profile("laptop", {"pool.blocs": 3})


def test_an_override_inside_what_is_no_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("pool = 3")
    with pytest.raises(ProfileError, match=r"pool = 3: write a table"):
        load_profile(str(tmp_path / "mine.toml"), {"pool.blocks": 99})


def test_a_file_is_named_after_itself(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("[pool]\nblocks = 400\n")
    profile = load_profile(str(tmp_path / "mine.toml"))
    assert (profile.name, profile.pool.blocks) == ("mine", 400)
    assert profile == parse_profile("mine", {"pool": {"blocks": 400}})


def test_a_dumped_profile_is_the_same_profile() -> None:
    profile = load_profile("laptop-text")
    assert Profile.model_validate_json(profile.model_dump_json()) == profile


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ProfileError, match=r"'lapto': use one of .*laptop, laptop-text"):
        load_profile("lapto")


@pytest.mark.parametrize("name", ["nowhere.toml", "\0.toml"])
def test_a_file_that_cannot_be_read_is_refused(name: str) -> None:
    with pytest.raises(ProfileError, match="give a readable TOML file"):
        load_profile(name)


@pytest.mark.parametrize(
    "rubbish",
    [
        "[pool",
        "pool.blocks = ",
        "a = 1\na = 2",
        f"a = {'9' * 5000}",
        f"a = {'[' * 20000}",
        "\x00",
    ],
)
def test_toml_rubbish_is_refused_by_file(tmp_path: Path, rubbish: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(rubbish, "utf-8")
    with pytest.raises(ProfileError, match=r"mine\.toml.*mend the TOML"):
        load_profile(str(path))


@given(st.binary(max_size=60) | st.text(alphabet="[]{}=\"\n.a1# 'pol-", max_size=60).map(str.encode))
def test_whatever_lies_in_the_file_only_a_profile_error_comes_out(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzzed.toml"
    path.write_bytes(content)
    with contextlib.suppress(ProfileError):
        assert load_profile(str(path)).name == "fuzzed"


def test_an_installed_wheel_finds_its_profiles(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    program = "import metronome_cli.profile as p; print(p.__file__, *p.profile_names())"
    found = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path / "site")},
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout.split()
    assert found == [str(tmp_path / "site" / "metronome_cli" / "profile.py"), *profile_names()]


@pytest.mark.parametrize("header", [33, 64, 65, 4000])
def test_the_most_that_instructions_may_take_is_told_and_is_the_most(header: int) -> None:
    profile = parse_profile(
        "null",
        {
            "model": {"kind": "null"},
            "beat": {"prefill_tokens": 16},
            "window": {"window": 64, "sinks": "header"},
            "pool": {"blocks": 60, "block_size": 4},
        },
    )
    terms = Terms(instructions="any")
    with pytest.raises(ProfileError) as caught:
        profile.session_policy(terms, 3, header)
    assert (caught.value.field, caught.value.value) == ("session.instructions", f"{header} tokens")
    assert caught.value.cure.startswith("32 tokens fit")
    assert f"cut {header - 32} of them" in caught.value.cure
    assert profile.session_policy(terms, 3, 32) == Window(36, 32)
