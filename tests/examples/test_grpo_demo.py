"""The parts of the demo that need neither Tunix nor transformers: its checks and its limits.

The whole demo runs by `make demo`.
"""

from __future__ import annotations

import dataclasses
import io
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from channel import ChannelError, EngineClient, EngineServer
from fingerprints import FingerprintError, compare_fingerprints
from launch import DemoError, Launch, check_environment, check_ports
from messages import (
    Array,
    Failed,
    Generate,
    Hello,
    Ready,
    Refitted,
    Values,
    decode_request,
    encode,
)
from progress import Progress
from report import check_claims, format_report
from results import RefitRecord, RunResult
from task import COMPLETION_LENGTH, LetterTokenizer, make_prompts, share_of_chosen_token

REFIT = RefitRecord(
    num_parameters=3,
    nbytes=2_000_000,
    seconds=0.004,
    phases={"begin": 0.001, "move": 0.003},
    bytes_per_second=5e8,
    peak_staging_bytes=1 << 20,
    share_resharded=1.0,
    achieved_share_of_limit=0.5,
)
REFITTED = RunResult(
    is_refit_on=True,
    model_size=500_000,
    rewards=[0.02, 0.5, 0.97],
    refits=[REFIT] * 4,
    num_fingerprints=12,
    logits_difference=2e-6,
    seconds=30.0,
)
FROZEN = dataclasses.replace(
    REFITTED,
    is_refit_on=False,
    rewards=[0.02, 0.01, 0.02],
    refits=[],
    num_fingerprints=0,
    logits_difference=3.0,
)


def test_every_claim_holds_for_a_good_pair_of_runs() -> None:
    claims = check_claims(REFITTED, FROZEN)
    assert [claim.text for claim in claims if not claim.holds] == []
    report = format_report(REFITTED, FROZEN, claims)
    assert "FAILED" not in report
    assert "move, ms" in report


@pytest.mark.parametrize(
    ("side", "change"),
    [
        ("refitted", {"rewards": [0.02, 0.5, 0.94]}),
        ("refitted", {"rewards": [0.4, 0.5, 0.97]}),
        ("refitted", {"refits": [REFIT] * 3, "num_fingerprints": 12}),
        ("refitted", {"refits": []}),
        ("refitted", {"num_fingerprints": 11}),
        ("refitted", {"logits_difference": 2e-4}),
        ("refitted", {"logits_difference": float("nan")}),
        (
            "refitted",
            {"refits": [REFIT] * 3 + [dataclasses.replace(REFIT, share_resharded=0.95)]},
        ),
        ("frozen", {"rewards": [0.02, 0.2, 0.02]}),
        ("frozen", {"refits": [REFIT]}),
        ("frozen", {"logits_difference": 1e-6}),
    ],
)
def test_a_run_that_breaks_one_promise_fails_a_claim(side: str, change: dict[str, object]) -> None:
    runs = {"refitted": REFITTED, "frozen": FROZEN}
    runs[side] = dataclasses.replace(runs[side], **change)
    claims = check_claims(runs["refitted"], runs["frozen"])
    assert any(not claim.holds for claim in claims)
    assert "FAILED" in format_report(runs["refitted"], runs["frozen"], claims)


def test_a_result_survives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "result.json"
    REFITTED.save(path)
    assert RunResult.load(path) == REFITTED


def test_fingerprints_that_agree_pass() -> None:
    compare_fingerprints(4, {"a": 1, "b": 2}, Refitted(4, {"b": 2, "a": 1}))


@pytest.mark.parametrize(
    ("trainer_side", "engine_side"),
    [
        ({"a": 1}, Refitted(4, {"a": 2})),
        ({"a": 1}, Refitted(3, {"a": 1})),
        ({"a": 1, "b": 2}, Refitted(4, {"a": 1})),
        ({"a": 1}, Refitted(4, {"a": 1, "b": 2})),
        ({}, Refitted(4, {})),
    ],
)
def test_fingerprints_that_differ_are_an_error(
    trainer_side: dict[str, int], engine_side: Refitted
) -> None:
    with pytest.raises(FingerprintError):
        compare_fingerprints(4, trainer_side, engine_side)


def test_a_request_and_its_arrays_survive_the_channel() -> None:
    tokens = np.arange(6, dtype=np.int64).reshape(2, 3).T
    request = decode_request(encode(Generate(Array.of(tokens), 16, 1.0, seed=7)))
    assert isinstance(request, Generate)
    assert request.seed == 7
    np.testing.assert_array_equal(request.prompts.numpy(), tokens)


def free_address(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/rollouts"


def test_a_silent_engine_is_an_error_at_the_limit(tmp_path: Path) -> None:
    address = free_address(tmp_path)
    started = time.monotonic()
    with (
        EngineClient(address) as client,
        pytest.raises(ChannelError, match=r"rollouts: the engine did not send a Ready reply"),
    ):
        client.ask(Hello(), Ready, timeout_s=0.2)
    assert time.monotonic() - started < 5.0


def test_the_engine_s_error_reaches_the_trainer(tmp_path: Path) -> None:
    address = free_address(tmp_path)
    server = EngineServer(address)

    def serve() -> None:
        server.receive(10.0)
        server.reply(Failed("LayoutError: wq"))

    engine = threading.Thread(target=serve)
    engine.start()
    with (
        EngineClient(address) as client,
        pytest.raises(ChannelError, match="the engine failed: LayoutError: wq"),
    ):
        client.ask(Hello(), Ready, timeout_s=10.0)
    engine.join(10.0)
    server.close()


def test_a_reply_of_another_kind_is_an_error(tmp_path: Path) -> None:
    address = free_address(tmp_path)
    server = EngineServer(address)

    def serve() -> None:
        server.receive(10.0)
        server.reply(Ready(2))

    engine = threading.Thread(target=serve)
    engine.start()
    with EngineClient(address) as client, pytest.raises(ChannelError, match="Ready, not Values"):
        client.ask(Hello(), Values, timeout_s=10.0)
    engine.join(10.0)
    server.close()


def test_the_engine_notices_that_the_trainer_has_gone(tmp_path: Path) -> None:
    address = free_address(tmp_path)
    server = EngineServer(address)
    program = textwrap.dedent(
        """
        import os, sys
        from channel import EngineClient
        from messages import Hello, Ready
        client = EngineClient(sys.argv[1])
        client.ask(Hello(), Ready, timeout_s=20.0)
        os.abort()
        """
    )
    folder = Path(sys.modules["channel"].__file__ or "").parent
    command = [sys.executable, "-c", program, address]
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.DEVNULL) as trainer:
        server.receive(20.0)
        server.reply(Ready(2))
        trainer.wait(20.0)
        started = time.monotonic()
        with pytest.raises(ChannelError, match="the trainer closed the connection"):
            server.receive(20.0)
        assert time.monotonic() - started < 2.0
    server.close()


def test_an_address_that_is_taken_is_an_error() -> None:
    first = EngineServer("tcp://127.0.0.1:*")
    taken = first._channel._socket.last_endpoint.decode()
    with pytest.raises(ChannelError, match="cannot listen"):
        EngineServer(taken)
    with pytest.raises(DemoError, match=r"port \d+ on 127.0.0.1 cannot be used"):
        check_ports(int(taken.rsplit(":", 1)[1]))
    first.close()


def python_program(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def test_two_programs_that_end_well_are_a_good_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=4")
    launch = Launch(tmp_path, "good", limit_s=30.0)
    launch.start_engine(python_program("import os; print('XLA_FLAGS' in os.environ)"))
    launch.start_trainer(python_program(""))
    launch.wait()
    assert (tmp_path / "good-engine.log").read_text().strip() == "False"


def test_a_program_that_dies_ends_the_run_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launch._GRACE_S", 0.2)
    launch = Launch(tmp_path, "bad", limit_s=30.0)
    launch.start_engine(python_program("import sys; sys.exit('engine: no such layout')"))
    launch.start_trainer(python_program("import signal; signal.pause()"))
    with pytest.raises(
        DemoError, match=r"(?s)^the engine \(pid \d+\) ended with 1.*no such layout"
    ):
        launch.wait()


def test_a_run_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    launch = Launch(tmp_path, "slow", limit_s=0.3)
    launch.start_engine(python_program("import signal; signal.pause()"))
    launch.start_trainer(python_program("import signal; signal.pause()"))
    with pytest.raises(DemoError, match=r"the engine and the trainer did not end within 0\.3 s"):
        launch.wait()


def test_a_missing_environment_or_package_is_named(tmp_path: Path) -> None:
    with pytest.raises(DemoError, match="no virtual environment here"):
        check_environment(tmp_path / ".venv-none", ("json",))
    venv = Path(sys.executable).parents[1]
    check_environment(venv, ("json",))
    with pytest.raises(DemoError, match=r"lacks no_such_package\. "):
        check_environment(venv, ("json", "no_such_package"))


def test_progress_is_one_updating_line_on_a_terminal_and_plain_lines_elsewhere() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for stream, num_lines in ((Terminal(), 1), (io.StringIO(), 4)):
        progress = Progress("run", 2, stream)
        progress.note("starting")
        progress.step(1, "reward 0.1")
        progress.step(2, "reward 0.2")
        progress.finish("done")
        assert stream.getvalue().count("\n") == num_lines
        assert "step  1/2 [##########----------] reward 0.1" in stream.getvalue()


def test_the_reward_is_the_share_of_the_chosen_token() -> None:
    tokenizer = LetterTokenizer()
    completion = tokenizer.decode([7] * 4 + [8, 0, 3, 9] * 3)
    assert len(completion) == COMPLETION_LENGTH
    assert share_of_chosen_token(completion) == 0.25
    prompts = make_prompts(2, 3, seed=0)
    assert [tokenizer.decode(tokenizer.encode(text)) for text in prompts[0]["prompts"]] == list(
        prompts[0]["prompts"]
    )
