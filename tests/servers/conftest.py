"""The fixture of small HTTP servers that speak as vLLM's do."""

from collections.abc import Callable, Iterator

import pytest

from tests.servers.stand import Stand


@pytest.fixture
def stand(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Stand]]:
    monkeypatch.setattr("mathrl.servers.server.SECONDS", 60.0)  # a stand may answer late
    made: list[Stand] = []

    def make() -> Stand:
        made.append(Stand())
        return made[-1]

    yield make
    for each in made:
        each.shutdown()
        each.server_close()
