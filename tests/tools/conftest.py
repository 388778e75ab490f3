"""One sandbox for all tests of the room: starting one imports sympy, numpy and scipy."""

from collections.abc import Iterator

import pytest

from mathrl.core.errors import UserError
from mathrl.tools.pool import Pool
from tests.tools.sandbox import LIMITS, Machine, machine


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """What the programs in the sandbox must not reach; made before the sandbox, whose environment could have it."""
    with machine(tmp_path_factory.mktemp("machine")) as unharmed:
        yield unharmed


@pytest.fixture(scope="session")
def pool(target: Machine) -> Iterator[Pool]:
    """A running sandbox; skips where there is none."""
    try:
        pool = Pool(LIMITS)
    except UserError as error:
        pytest.skip(str(error))
    yield pool
    pool.close()
