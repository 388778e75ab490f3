"""`mathrl plan --simulate`: seconds per step of a run of any size, for three ways to share the GPUs."""

from pathlib import Path

from mathrl.cli.output import print_document
from mathrl.core.errors import UserError
from mathrl.params.load import read_yaml, validated
from mathrl.params.messages import did_you_mean
from mathrl.params.simulate import MODES, Simulation
from mathrl.planning.simulate import SETUPS, simulate

WIDTHS = (9, 10, 9, 9, 8, 15, 7, 8)


def show_simulation(name: str, as_json: bool = False) -> None:
    """Print the table of a set-up: a YAML file, or the name of one of mathrl/planning/simulations."""
    setup = load_setup(name)
    if as_json:
        rows = {mode: simulate(setup, mode) for mode in MODES}
        print_document({"description": setup.description, "gpus": setup.gpus, "nodes": setup.nodes, "modes": rows})
        return
    if setup.description:
        print(setup.description.strip())
    apart = setup.sampler_gpus or setup.gpus // 2
    print(
        f"{setup.gpus} GPUs in {setup.nodes} nodes ({apart} of them sample when sampling and training are apart), "
        f"{setup.responses:,} responses per step, mean {setup.lengths.mean:,.0f} tokens, "
        f"at most {setup.lengths.limit:,}\n"
    )
    heads = ("step s", "sample s", "train s", "wait s", "sync s", "samplers busy", "stale", "speed")
    print(" " * 16 + "".join(f"{head:>{width}}" for head, width in zip(heads, WIDTHS, strict=True)))
    first: float | None = None
    for mode in MODES:
        step = simulate(setup, mode)
        first = first or step.step_seconds
        print(
            f"{mode:<16}{step.step_seconds:>9.1f}{step.generation:>10.1f}{step.training:>9.1f}"
            f"{step.waiting:>9.1f}{step.sync:>8.1f}{step.sampler_busy:>15.0%}{step.staleness:>7.2f}"
            f"{first / step.step_seconds:>7.2f}x"
        )


def load_setup(name: str) -> Simulation:
    """The validated set-up.

    Raises:
        UserError: no such file, or values that do not fit; the message names all of them with their fields.
    """
    names = sorted(file.stem for file in SETUPS.glob("*.yaml"))
    file = Path(name) if name.endswith((".yaml", ".yml")) else SETUPS / f"{name}.yaml"
    if not file.is_file():
        raise UserError(
            f"no set-up {name!r}{did_you_mean(name, names)}; give a YAML file, or one of {', '.join(names)}"
        )
    return validated(Simulation, read_yaml(file), str(file))
