"""`mathrl health RUN`: the health rules over the metrics of a run, afterwards or while it runs."""

import json
import os
from pathlib import Path

from mathrl.core.paths import main_checkout


def health(run: str, *, as_json: bool) -> int:
    """Print the findings; the exit status is 1 where the run is red.

    Raises:
        UserError: nothing of that name has metrics.
    """
    from mathrl.health.watch import examine, sentence
    from mathrl.reports.find_run import trained

    here = Path(run).absolute()
    os.chdir(main_checkout())
    found = trained(str(here) if here.exists() else run)
    report = examine(found.rows, *found.settings()).report()
    if as_json:
        print(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        print(f"{found.name}: {report['colour']} after {report['steps']} steps")
        for each in report["findings"]:
            print(f"- to step {each['last']}, {sentence(each)}")
    return int(report["colour"] == "red")
