"""Ranks for the tests of this folder; they are started once."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from rank_pool import Ranks

from helpers import one_thread  # noqa: F401 - a fixture, used by being here


@pytest.fixture(scope="session")
def _started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], Ranks]]:
    made: dict[int, Ranks] = {}

    def ranks(number: int) -> Ranks:
        if number not in made or made[number].closed:
            made[number] = Ranks(number, tmp_path_factory.mktemp("ranks"))
        return made[number]

    yield ranks
    for each in made.values():
        each.close()


@pytest.fixture(params=[2, 4])
def ranks(request: pytest.FixtureRequest, _started: Callable[[int], Ranks]) -> Ranks:
    """2 and 4 ranks."""
    return _started(request.param)


@pytest.fixture
def one(_started: Callable[[int], Ranks]) -> Ranks:
    """1 rank."""
    return _started(1)


@pytest.fixture
def two(_started: Callable[[int], Ranks]) -> Ranks:
    """2 ranks."""
    return _started(2)


@pytest.fixture
def four(_started: Callable[[int], Ranks]) -> Ranks:
    """4 ranks."""
    return _started(4)
