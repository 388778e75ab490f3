"""The device that a rank computes on."""

import os

import torch

from mathrl.core.errors import UserError


def choose_device(name: str) -> torch.device:
    """The device that `run.device` names: auto takes this rank's GPU if the machine has one.

    Raises:
        UserError: cuda is asked for and torch finds no GPU.
    """
    has_gpu = torch.cuda.is_available()
    if name == "cuda" and not has_gpu:
        raise UserError("run.device is cuda, but torch finds no GPU; set run.device to cpu or auto")
    if name == "cpu" or not has_gpu:
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
