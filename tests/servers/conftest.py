"""The fixture of small HTTP servers that speak as vLLM's do."""

from collections.abc import Callable, Iterator

import pytest

from tests.servers.stand import Stand


@pytest.fixture
def stand() -> Iterator[Callable[[], Stand]]:
    made: list[Stand] = []

    def make() -> Stand:
        made.append(Stand())
        return made[-1]

    yield make
    for each in made:
        each.shutdown()
        each.server_close()
