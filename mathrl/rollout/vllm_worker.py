"""Added to a vLLM server's workers: new weights, from a folder of safetensors files or by vLLM's own transfer."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import mathrl.rollout.received_weights  # noqa: F401  # registers its engines with vLLM
from mathrl.core.parent import die_with_parent
from mathrl.models.weights import WeightDigest, folder_weights, with_head

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
        self.end_broken_update()
        self.reload_weights(weights_iterator=with_head(_counted(folder_weights(path), total)))
        return total.hexdigest()

    def end_broken_update(self: Any) -> None:
        """Before weights come: an update that broke off is ended.

        vLLM buffers the parts of a layer until it has all of them, and would take old parts for new ones.
        """
        if getattr(self.weight_transfer_engine, "incomplete", False):
            self._weight_update_active = True  # vLLM takes it back where an update raises
            self.finish_weight_update()

    def received_digest(self: Any) -> str:
        """The digest of what the last update brought."""
        digest: str = self.weight_transfer_engine.total.hexdigest()
        return digest

    def gpu_name(self: Any) -> str:
        """The UUID of this worker's GPU, empty on a CPU."""
        return str(torch.cuda.get_device_properties(self.device).uuid) if self.device.type == "cuda" else ""


def _counted(weights: Iterable[tuple[str, Tensor]], total: WeightDigest) -> Iterator[tuple[str, Tensor]]:
    for name, weight in weights:
        total.add(name, weight)
        yield name, weight
