"""Added to a vLLM server's workers: reading new weights from a folder of safetensors files."""

from pathlib import Path
from typing import Any

from mathrl.models.weights import folder_weights, with_head


class WeightReader:
    """Mixed into vLLM's worker by `--worker-extension-cls`; called over POST /collective_rpc."""

    def read_weights(self: Any, folder: str) -> str:
        """Take over the weights of the folder's safetensors files; a tied head is sent as a matrix.

        Raises:
            FileNotFoundError: the folder, as this server sees it, has no such files.
        """
        path = Path(folder)
        if not any(path.glob("*.safetensors")):
            raise FileNotFoundError(f"{folder}: this server finds no *.safetensors in it")
        self.reload_weights(weights_iterator=with_head(folder_weights(path)))
        return "read"
