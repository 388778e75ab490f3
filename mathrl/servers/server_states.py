"""The servers that a running stage samples from, as it last saw them: written by rank 0, shown by Prefect and doctor.

home()/records/rl-77aa…-1/servers.json
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from mathrl.core.environment import Variable, rank

FILE = "servers.json"


@dataclass(frozen=True)
class ServerState:
    """Example: ServerState("http://127.0.0.1:8001", alive=True, generation=3181744263, weights="9f86d081", failure="").

    `generation` is the number of the server's process, `weights` the digest of its weights, empty before a sync.
    """

    url: str
    alive: bool
    generation: int
    weights: str
    failure: str


def write_states(servers: Sequence[ServerState]) -> None:
    """Note the servers beside the running stage's record, if this process is rank 0 of a stage."""
    folder = Variable.RECORD.get()
    if not folder or rank() != 0:
        return
    file = Path(folder) / FILE
    aside = file.with_name(f"{FILE}.partial")
    aside.write_text(json.dumps([asdict(server) for server in servers]))
    aside.replace(file)


def read_states(record: Path) -> list[ServerState]:
    """The servers of the run with this record; none if it samples from no servers."""
    try:
        rows = json.loads((record / FILE).read_text())
    except FileNotFoundError:
        return []
    return [ServerState(**row) for row in rows]


def servers_text(servers: Sequence[ServerState]) -> str:
    """
    >>> servers_text([ServerState("a", True, 5, "9f86", ""), ServerState("b", False, 7, "", "a does not answer")])
    '; 1 of 2 servers live'
    """
    return f"; {sum(server.alive for server in servers)} of {len(servers)} servers live" if servers else ""


def state_text(server: ServerState) -> str:
    """
    >>> state_text(ServerState("http://127.0.0.1:8001", True, 3181744263, "9f86d081", ""))
    'http://127.0.0.1:8001 is live (generation 3181744263, weights 9f86d081)'
    """
    if not server.alive:
        failure = server.failure or "not live"
        return failure if server.url in failure else f"{server.url}: {failure}"
    return f"{server.url} is live (generation {server.generation}, weights {server.weights or 'not sent yet'})"
