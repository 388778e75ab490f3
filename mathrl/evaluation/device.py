"""Where a rank computes."""

import os


def device_name(wanted: str) -> str:
    """run.device as torch names it: auto takes this rank's GPU where there is one.

    Raises:
        UserError: cuda is asked for and there is none.
    """
    import torch  # seconds to import; only stages that sample need it

    from mathrl.core.errors import UserError

    there = torch.cuda.is_available()
    if wanted == "cuda" and not there:
        raise UserError("run.device is cuda, but torch sees no GPU; set run.device to cpu or auto")
    if wanted == "cpu" or not there:
        return "cpu"
    return f"cuda:{int(os.environ.get('LOCAL_RANK', '0')) % torch.cuda.device_count()}"
