"""How a run is called in a list: after what it runs and what is different about it."""

import json
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any

MOST, LONGEST = 3, 28  # parameters in a name, and the characters of each
# What people change most, in the order in which forms, names and lists have it.
MAIN = (
    "rl.optimizer.lr",
    "rl.steps",
    "rl.group_size",
    "rl.kl.coef",
    "rl.loss.low",
    "rl.loss.high",
    "sft.optimizer.lr",
    "sft.steps",
    "run.seed",
)
SEED, PLAIN = "run.seed", ("rl.", "run.")  # sections that a name leaves out


def run_name(title: str, preset: str = "", changed: Mapping[str, Any] | None = None, commit: str = "") -> str:
    """The title with the preset and the changed parameters; without any of them with the commit.

    >>> run_name("rl", "", {"rl.optimizer.lr": 0.002, "rl.steps": 8})
    'rl lr=0.002 steps=8'
    >>> run_name("pipeline", "gsm8k", {"sft.optimizer.lr": 1e-05, "run.seed": 1}), run_name("rl", commit="3f2a1bc77")
    ('pipeline gsm8k sft.lr=1e-05 seed 1', 'rl 3f2a1bc')
    """
    words = [preset] if preset else []
    settings = change_words({key: value for key, value in (changed or {}).items() if key != SEED})
    words += [word[:LONGEST] for word in settings[:MOST]]
    words += [f"and {len(settings) - MOST} more"] if len(settings) > MOST else []
    words += [f"seed {changed[SEED]}"] if changed and SEED in changed else []
    return " ".join([title, *(words or [commit[:7]])]).strip()


def chosen_words(groups: Iterable[str], preset: str = "") -> str:
    """Groups and preset in a few words.

    >>> chosen_words(["data=gsm8k", "model=Qwen/Qwen2.5-0.5B"], "long")
    'data=gsm8k model=Qwen2.5-0.5B long'
    """
    words = (f"{kind}={PurePath(name).name}" for kind, _, name in (group.partition("=") for group in groups))
    return " ".join([*words, *filter(None, [preset])])


def change_words(changed: Mapping[str, Any]) -> list[str]:
    """Each changed parameter in a word, the model and those of `MAIN` first.

    >>> change_words({"rl.kl.coef": 0.01, "rl.optimizer.lr": 0.002, "rl.loss": {"type": "gspo", "low": 0.2}})
    ['lr=0.002', 'kl.coef=0.01', 'loss=gspo']
    >>> change_words({"rl.optimizer.lr": 0.002, "model.base": {"type": "pretrained", "path": "models/Qwen2.5-0.5B"}})
    ['model.base=Qwen2.5-0.5B', 'lr=0.002']
    """
    return [f"{_short(key)}={_text(value)}" for key, value in sorted(changed.items(), key=_place)]


def _place(item: tuple[str, Any]) -> tuple[int, str]:
    """The model first, as in a form, then `MAIN`, then the others by name."""
    key = item[0]
    if key.startswith("model."):
        return -1, key
    return (MAIN.index(key) if key in MAIN else len(MAIN)), key


def _short(key: str) -> str:
    key = key.replace(".optimizer.lr", ".lr")
    return next((key.removeprefix(section) for section in PLAIN if key.startswith(section)), key)


def _text(value: Any) -> str:
    if isinstance(value, Mapping) and "path" in value:
        return PurePath(str(value["path"])).name
    if isinstance(value, Mapping) and "type" in value:
        number = next((f" {value[name]:g}" for name in ("lr", "coef") if name in value), "")
        return f"{value['type']}{number}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
