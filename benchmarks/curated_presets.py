r"""Rows of the presets on the real sets: read, dropped by reason, and kept. Prints a table.

MATHRL_DATA=/path/to/sets python benchmarks/curated_presets.py gsm8k math math-mixture
"""

import sys
from collections import Counter

from mathrl.compose import load_params
from mathrl.core.paths import main_checkout
from mathrl.curation import curation


def main() -> None:
    print("| preset | rows read for rl | dropped | variants kept (groups) | sft barred | rl, dev, sft | test |")
    print("|---|---|---|---|---|---|---|")
    for name in sys.argv[1:]:
        params = load_params(main_checkout() / "params", preset=name)
        curated = curation.run(params.curate, params.run.seed)
        read = sum(s.rows_in for s in curated.steps if s.name.startswith("read") and "(test)" not in s.name)
        reasons = ", ".join(f"{reason} {n:,}" for reason, n in Counter(d.reason for d in curated.dropped).most_common())
        sizes = ", ".join(f"{len(curated.splits[split]):,}" for split in ("rl", "dev", "sft"))
        barred, groups, test = curated.solutions_barred, len(curated.variants), len(curated.splits["test"])
        print(f"| {name} | {read:,} | {reasons} | {groups} | {barred} | {sizes} | {test:,} |")


if __name__ == "__main__":
    main()
