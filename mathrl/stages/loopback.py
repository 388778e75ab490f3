"""Ranks that are all on this machine talk over loopback: gloo and NCCL listen on no network that others reach."""

import os
import socket
from collections.abc import Mapping
from urllib.parse import urlsplit

from mathrl.core.environment import Variable
from mathrl.core.paths import is_loopback
from mathrl.params import Params
from mathrl.params.schema import READS, hands_over
from mathrl.params.training_engine import Verl

GLOO, NCCL = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"


def loopback_variables(stage: str, params: Params, environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of gloo and NCCL that keep the ranks of a stage on loopback; those that a person has set stay.

    None if ranks are on several machines. Rank 0 sends weights to vLLM's servers by NCCL as well: with servers on
    other machines it chooses its network itself.
    """
    loopbacks = [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]
    if not loopbacks or not _on_this_machine(stage, params, environment):
        return {}
    names = [GLOO] if _samples_elsewhere(stage, params, environment) else [GLOO, NCCL]
    return {name: loopbacks[0] for name in names if name not in environment}


def listen_on_loopback(stage: str, params: Params) -> None:
    """Set `loopback_variables` for this process and all that it starts: ranks, vLLM's servers, verl with Ray."""
    os.environ |= loopback_variables(stage, params, os.environ)


def _on_this_machine(stage: str, params: Params, environment: Mapping[str, str]) -> bool:
    engine = params.rl.engine if hands_over(stage, params) else None
    if isinstance(engine, Verl):
        return engine.nodes == 1 and engine.ray_address is None
    ranks = environment.get(Variable.WORLD_SIZE)  # of torchrun, or of no one
    return ranks is None or ranks == environment.get("LOCAL_WORLD_SIZE")


def _samples_elsewhere(stage: str, params: Params, environment: Mapping[str, str]) -> bool:
    if "rollout" not in READS[stage] or params.rollout.engine != "vllm_server":
        return False
    named = environment.get(Variable.SERVERS)
    urls = named.split(",") if named else params.rollout.servers.urls
    return not all(is_loopback(urlsplit(url).hostname or "") for url in urls)
