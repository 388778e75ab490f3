"""Added to a vLLM server's workers: reading new weights from a folder of safetensors files."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from mathrl.core.parent import die_with_parent
from mathrl.models.weight_digest import WeightDigest
from mathrl.models.weights import folder_weights, with_head

# vLLM's engine is a child of its HTTP server, and would outlive one that is killed.
die_with_parent()


class WeightReader:
    """Mixed into vLLM's worker by `--worker-extension-cls`; called through `served_weights`."""

    def read_weights(self: Any, folder: str) -> str:
        """Take over the weights of the folder's safetensors files; a tied head is sent as a matrix.

        Returns the digest of what was read. Raises:
            FileNotFoundError: the folder, as this server sees it, has no such files.
        """
        path, total = Path(folder), WeightDigest()
        if not any(path.glob("*.safetensors")):
            raise FileNotFoundError(f"{folder}: this server finds no *.safetensors in it")
        self.reload_weights(weights_iterator=with_head(_counted(folder_weights(path), total)))
        return total.hexdigest()


def _counted(weights: Iterable[tuple[str, Tensor]], total: WeightDigest) -> Iterator[tuple[str, Tensor]]:
    for name, weight in weights:
        total.add(name, weight)
        yield name, weight
