"""What mutmut left alive in build/mutants, each with its line before and after. For `make mutants`."""

import subprocess
import sys
from collections import Counter

MUTMUT = sys.argv[1]


def said(*words: str) -> list[str]:
    return subprocess.run([MUTMUT, *words], capture_output=True, text=True, check=True).stdout.splitlines()


fates = [line.strip().rpartition(": ") for line in said("results", "--all", "true")]
for name, _, fate in fates:
    if fate not in ("survived", "no tests", "suspicious"):
        continue
    print(f"{name} ({fate})")
    for line in said("show", name):
        if line.startswith(("-", "+")) and not line.startswith(("---", "+++")):
            print(f"    {line}")
counts = Counter(fate for _, _, fate in fates if fate and fate != "not checked")
print(", ".join(f"{count} {fate}" for fate, count in counts.most_common()))
print("docs/reference/mutants.md says why those that are left are equivalent")
