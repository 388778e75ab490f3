"""The commands that install what is missing or start the servers: make's in a checkout of mathrl, else pip's."""

from pathlib import Path

PACKAGE = Path(__file__).parents[1]
IN_CHECKOUT = (PACKAGE.parent / "pyproject.toml").is_file()
UI = "make ui" if IN_CHECKOUT else "mathrl ui"
MADE = {"platform": "make install", "vllm": "make engines", "deepspeed": "make engines"}


def install_command(extra: str = "platform", *, gpu: bool = False) -> str:
    """The command that installs an extra of mathrl at its tested versions; with `gpu` in the builds for NVIDIA's."""
    if IN_CHECKOUT and extra in MADE:
        return f"{MADE[extra]}{' GPU=1' if gpu else ''}"
    # A project has a copy of the versions for the machine on which it was made.
    versions = PACKAGE / "template" / "constraints-gpu.txt" if gpu else "constraints.txt"
    return f"pip install -c {versions} 'mathrl[{extra}]'"
