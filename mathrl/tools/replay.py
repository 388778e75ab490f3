"""A Python program that runs a session's calls again and shows the output of the last alone."""

import json

START, END = "<<<start ", "<<<end "  # each is followed by the fence of its request

PROGRAM = """\
import ast, json, linecache, os, random, sys, traceback

def _mathrl_main(calls, fence):
    random.seed(0)
    names = {"__name__": "__main__", "__builtins__": __builtins__}
    keep, null = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    for number, code in enumerate(calls, 1):
        last = number == len(calls)
        if last:
            sys.stdout.flush()
            os.dup2(keep, 1)
            os.dup2(1, 2)
            os.write(1, ("START" + fence + "\\n").encode())
        file = f"<cell {number}>"
        linecache.cache[file] = (len(code), None, code.splitlines(True), file)
        how = "ok"
        try:
            tree = ast.parse(code, file)
            value = tree.body.pop().value if tree.body and isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, file, "exec"), names)
            if value is not None:
                result = eval(compile(ast.Expression(value), file, "eval"), names)
                if result is not None:
                    print(repr(result))
        except BaseException as error:
            how, trace = "error", error.__traceback__
            while trace is not None and not trace.tb_frame.f_code.co_filename.startswith("<cell "):
                trace = trace.tb_next
            print("".join(traceback.format_exception(type(error), error, trace, limit=-8)), end="")
        sys.stdout.flush()
    os.write(1, ("END" + fence + " " + how + "\\n").encode())

_mathrl_main(json.loads(CALLS), FENCE)
"""


def program(calls: list[str], fence: str) -> str:
    """The program that runs `calls` one after another, as a notebook would its cells.

    Args:
        calls: codes, of which only the last one's output is shown.
        fence: a text that the calls cannot know beforehand; the output stands between two lines with it.
    """
    return (
        PROGRAM.replace("START", START)
        .replace("END", END)
        .replace("FENCE", repr(fence))
        .replace("CALLS", repr(json.dumps(calls)))  # last: the calls may contain any of these words
    )
