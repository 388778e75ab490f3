"""`mathrl rollouts [RUN]`: look at the rollouts that a run kept, in a browser."""

import os
import signal
import sys
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from mathrl.core.errors import UserError
from mathrl.core.exit_status import EXIT_TERMINATED
from mathrl.core.paths import main_checkout
from mathrl.reports.find_rollouts import find_rollouts
from mathrl.reports.rollout_server import HOST, Library, make_server


def rollouts(
    run: Annotated[
        str | None, typer.Argument(help="Stage rl, a recipe's step, a record, a parquet file, or an MLflow run.")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on loopback; 0: a free one.")] = 0,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
) -> None:
    """Look at kept rollouts in a browser: by step, verdict, rule, reward; two steps of a problem; search.

    A run keeps rollouts with rl.keep_rollouts.which=all, share or odd. Without RUN the page lists the runs.
    """
    here = Path(run).absolute() if run else None
    os.chdir(main_checkout())
    name, files = find_rollouts(str(here) if here and here.exists() else run) if run else ("", {})
    library = Library(files)
    if name:
        library.open(name)  # before the address is printed: the page then opens at once
    try:
        server = make_server(library, port)
    except OSError as error:
        raise UserError(f"port {port} cannot be used ({error.strerror}): choose another --port") from None
    address = f"http://{HOST}:{server.server_address[1]}/{name and name + '/'}"
    print(f"{address}   Ctrl-C ends it", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_TERMINATED))
    if browser:
        webbrowser.open(address)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        print("ended")
    finally:
        server.server_close()
