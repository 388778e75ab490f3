"""The values of a composition → `Params`: all errors at once, and what contradicts each other or runs nowhere.

User functions and samplers are checked before anything runs: read from their source, without importing it.
"""

import ast
import importlib.util
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from symtable import symtable
from typing import Any

from pydantic import ValidationError

from mathrl.compose.settings import TRAINED
from mathrl.core.errors import UserError
from mathrl.params.advantage import FunctionAdvantage, Process
from mathrl.params.curriculum import UserCurriculum
from mathrl.params.engines import engine_problem, has_setting, value_of
from mathrl.params.load import paths_of
from mathrl.params.loss import FunctionLoss
from mathrl.params.messages import did_you_mean, messages
from mathrl.params.reward_parts import FunctionPart
from mathrl.params.run import Reward
from mathrl.params.schema import Params
from mathrl.params.section import SECRET, DottedOptions
from mathrl.params.train import Rl


def validate(
    values: dict[str, Any], origin: Mapping[str, str], said_by: Callable[[str], str] = lambda key: ""
) -> Params:
    """The parameters with these values.

    Args:
        origin: Where the values of each section come from.
        said_by: Who said one value, by its dotted key; "" where that is not known.

    Raises:
        UserError: values do not fit; every error is in the message, with its file and field.
    """
    try:
        params = Params.model_validate(values)
    except ValidationError as error:
        lines = []
        for kind, (section, *rest), message in messages(error, Params):
            where = origin.get(str(section), str(section))
            # Not an override with a secret, which it contains.
            where = where.split(" + ")[0] if kind == SECRET else said_by(".".join(map(str, (section, *rest)))) or where
            no_hint = message.partition("; write one of ")[0] == "unknown parameter"
            if no_hint and (elsewhere := paths_of(str(rest[-1] if rest else section))):
                message = f"unknown parameter (did you mean {elsewhere[0]}?)"
            lines.append(f"{where}: {'.'.join(map(str, rest)) or section}: {message}")
        raise UserError("; ".join(lines)) from None
    problems = [f"{origin['reward']}: {line}" for line in function_problems(params.reward)]
    if isinstance(params.rl.curriculum, UserCurriculum):
        problems += [f"{origin['rl']}: {line}" for line in sampler_problems(params.rl.curriculum.sampler)]
    problems += [f"{origin['rl']}: {line}" for line in method_problems(params.rl)]
    shared = params.rollout.engine == "vllm" and params.rollout.vllm.tensor_parallel > 1
    if params.rl.asynchronous is not None and shared:
        problems.append(
            f"{origin['rl']}: asynchronous needs rollout.vllm.tensor_parallel 1: ranks that share an engine would "
            "exchange data for rollouts and for the update at the same time, in no common order, and wait for each "
            "other forever; set asynchronous to null, or rollout.engine to vllm_server"
        )
    problems += [f"{origin['rollout']}: {line}" for line in tool_problems(params)]
    for stage in ("sft", "rl"):
        if problem := engine_problem(params, stage):
            problems.append(f"{origin[stage]}: {problem}")
    problems += [f"{origin['training']}: {line}" for line in backend_problems(params)]
    if problems:
        raise UserError("; ".join(problems))
    return params


def backend_problems(params: Params) -> Iterator[str]:
    """What training.backend cannot hold: loss scales and weights of 4 bits are the torch backend's."""
    backend = params.training.backend
    if backend == "torch":
        return
    if params.model.precision == "float16":
        yield (
            f"model.precision float16 needs a scaled loss, which backend {backend} does not have here: set backend to "
            "torch, or model.precision to bfloat16"
        )
    for keys in TRAINED.values():
        lora = value_of(params, keys.lora) if has_setting(params, keys.lora) else None
        if lora is not None and lora.frozen == "nf4":
            yield (
                f"backend {backend} cannot divide or gather weights of 4 bits: set backend to torch, or "
                f"{keys.lora}.frozen to whole"
            )


def function_problems(reward: Reward) -> Iterator[str]:
    """The errors in functions of reward parts, each with the part's path in the reward section."""
    routes = {f"routes.{name}": parts for name, parts in reward.routes.items()}
    for place, parts in {"parts": reward.parts, **routes}.items():
        for number, part in enumerate(parts):
            if isinstance(part, FunctionPart):
                problem, definitions = _definitions(part.options.path)
                functions = [node for node in definitions if isinstance(node, ast.FunctionDef)]
                wrong = (_wrong_option(node, part.options.keywords()) or _takes_no_row(node) for node in functions)
                problem = problem or next(wrong, "")
                if problem:
                    yield f"{place}.{number}.options.{problem}"


def sampler_problems(sampler: DottedOptions) -> Iterator[str]:
    """The errors in the class of rl.curriculum.sampler, with its path in the section rl."""
    problem, definitions = _definitions(sampler.path)
    classes = [node for node in definitions if isinstance(node, ast.ClassDef)]
    problem = problem or next((_wrong_class(node, sampler.keywords()) for node in classes), "")
    if problem:
        yield f"curriculum.sampler.{problem}"


def method_problems(rl: Rl) -> Iterator[str]:
    """The errors in the functions of rl.loss and rl.advantage, with their paths in the section rl."""
    for name, part in (("loss", rl.loss), ("advantage", rl.advantage)):
        if isinstance(part, FunctionLoss | FunctionAdvantage):
            problem, definitions = _definitions(part.path)
            functions = [node for node in definitions if isinstance(node, ast.FunctionDef)]
            wrong = next((_wrong_option(node, part.options.values()) for node in functions), "")
            if problem or wrong:
                yield f"{name}.{problem or f'options.{wrong}'}"


def _definitions(path: str) -> tuple[str, list[ast.AST]]:
    """What is wrong with a dotted path, or "", and where its name is defined in the module's source, if it is."""
    module, _, name = path.replace(":", ".").rpartition(".")
    file = _source(module)
    if file is None:
        return f"path: no module {module!r} in the working folder or installed; write package.module.{name}", []
    if file.suffix != ".py":
        return "", []  # compiled: the import at the start of the stage checks it
    try:
        source = importlib.util.decode_source(file.read_bytes())  # a BOM, or another encoding in a comment
        table, tree = symtable(source, str(file), "exec"), ast.parse(source)
    except (OSError, SyntaxError, ValueError) as error:
        return f"path: {file} cannot be read as Python ({error})", []
    nodes = list(ast.walk(tree))
    if any(isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in nodes):
        return "", []  # only Python knows the names of such an import
    names = [s.get_name() for s in table.get_symbols() if s.is_assigned() or s.is_imported()]
    if name not in names:
        return f"path: {file} defines no {name!r}{did_you_mean(name, names)}", []
    lines = {space.get_lineno() for space in table.lookup(name).get_namespaces()}  # where the module defines it
    kinds = (ast.FunctionDef, ast.ClassDef)
    return "", [node for node in nodes if isinstance(node, kinds) and node.name == name and node.lineno in lines]


def _wrong_class(made: ast.ClassDef, options: dict[str, Any]) -> str:
    if made.bases or made.decorator_list:
        return ""  # a base class may have what is missing here
    methods = {node.name: node for node in made.body if isinstance(node, ast.FunctionDef)}
    missing = [name for name in ("take", "observe", "state", "load") if name not in methods]
    if missing:
        return f"path: {made.name} lacks {', '.join(missing)}; see docs/how_to/extend/sampler.md"
    if "__init__" not in methods or methods["__init__"].args.kwarg is not None:
        return ""
    arguments = methods["__init__"].args
    accepted = [argument.arg for argument in (*arguments.args[3:], *arguments.kwonlyargs)]
    for option in options:
        if option not in accepted:
            hint = did_you_mean(option, accepted)
            return f"{option}: unknown option{hint}; {made.name} accepts {', '.join(accepted) or 'no options'}"
    return ""


def _wrong_option(function: ast.FunctionDef, options: dict[str, Any]) -> str:
    arguments = function.args
    if arguments.kwarg is not None or function.decorator_list:
        return ""
    accepted = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    for option in options:
        if option not in accepted:
            hint = did_you_mean(option, accepted)
            return f"{option}: unknown option{hint}; {function.name} accepts {', '.join(accepted)}"
    return ""


def _takes_no_row(function: ast.FunctionDef) -> str:
    """The error of a reward function that is called with the fields of a problem's row and does not accept them."""
    arguments = function.args
    if arguments.kwarg is not None or function.decorator_list:
        return ""
    accepted = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    if accepted[:1] == ["reward_input"] or accepted[:2] == ["data_source", "solution_str"] or "source" in accepted:
        return ""
    return f"path: {function.name} must accept the fields of a problem's row: add **row to its parameters"


def _source(module: str) -> Path | None:
    """The file of a module: below the working folder, as a stage imports it, else where it is installed."""
    first, *rest = module.split(".")
    roots = [Path(first)]
    try:
        spec = importlib.util.find_spec(first)  # imports nothing: it is a top-level name
    except (ImportError, ValueError):
        spec = None
    if spec is not None:
        roots += [Path(folder) for folder in spec.submodule_search_locations or ()]
        if not rest and spec.origin:
            return Path(spec.origin)
    for root in roots:
        place = root.joinpath(*rest)
        for file in (place.with_name(place.name + ".py"), place / "__init__.py"):
            if file.is_file():
                return file
    return None


def tool_problems(params: Params) -> Iterator[str]:
    """A sentence for each setting that does not go with `rollout.tool`."""
    rollout = params.rollout
    if rollout.tool.kind == "none":
        return
    if isinstance(params.rl.advantage, Process):
        yield "rollout.tool: rl.advantage process has no rewards for steps with tool calls yet; set it to grpo"
    if params.reward.judge.continuations:
        yield (
            "rollout.tool: reward.judge.continuations continues the starts of responses, whose sessions are gone; set "
            "it to 0"
        )
    if params.sample.continuations:
        yield (
            "rollout.tool: sample.continuations continues the starts of responses, whose sessions are gone; set it to 0"
        )
    if rollout.engine == "vllm" and rollout.vllm.tensor_parallel > 1:
        yield (
            "rollout.tool: ranks that share a vLLM engine would wait for each other's turns forever; set "
            "rollout.vllm.tensor_parallel to 1, or rollout.engine to vllm_server"
        )
    if rollout.turns.format == "tool_call":
        routes = {f"prompt.routes.{name}.template": route.template for name, route in params.prompt.routes.items()}
        for key, template in {"prompt.template": params.prompt.template, **routes}.items():
            if template not in ("chat", None):  # a route without one has prompt.template
                yield (
                    f"rollout.turns.format is tool_call, but {key} is {template}: set it to chat, or the format to "
                    "python_block"
                )
