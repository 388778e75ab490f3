"""Whether the Hugging Face hub answers. Its client would try for half a minute, with a line per attempt."""

import os
import sys
from functools import cache

PROBE_SECONDS = 10.0
NO_HUB = "it does not answer ($HF_ENDPOINT), or HF_HUB_OFFLINE is set"


@cache
def ask_hub_once() -> bool:
    """Whether the hub answers one request; if it does not, its client looks only in its cache from then on.

    Processes that this one starts inherit the answer.
    """
    from huggingface_hub import constants  # seconds to import, and only what comes from the hub needs it

    if constants.HF_HUB_OFFLINE:
        return False
    import httpx

    try:
        httpx.head(constants.ENDPOINT, timeout=PROBE_SECONDS)
    except httpx.TransportError as error:
        if "CERTIFICATE" not in str(error):  # the hub's client may know other certificates
            _look_only_in_the_cache()
            return False
    return True


def _look_only_in_the_cache() -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"  # read at the import of the hub's packages
    for name in ("huggingface_hub.constants", "datasets.config"):
        if module := sys.modules.get(name):
            module.HF_HUB_OFFLINE = True  # type: ignore[attr-defined]
