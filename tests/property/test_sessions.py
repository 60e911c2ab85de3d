"""Random sides through whole sessions over shared memory: see `helpers.random_sessions`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from helpers.random_sessions import MAX_MEMBERS, check_versions
from helpers.strategies import problems, seeded
from hypothesis import given, settings
from hypothesis import strategies as st


@pytest.fixture(scope="module")
def threads():
    with ThreadPoolExecutor(MAX_MEMBERS) as pool:
        yield pool


@settings(max_examples=settings.default.max_examples // 2)
@given(problems(), seeded(), st.integers(1, MAX_MEMBERS), st.sampled_from((200_000, 64 << 20)))
def test_every_version_arrives_and_is_verified(
    threads, problem, random, num_members, staging_bytes
):
    check_versions(threads, problem, random, num_members, staging_bytes)
