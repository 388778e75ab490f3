"""code: the value of every stage's code, on which the stages depend. `python -m mathrl.stages.code` writes code.yaml.

DVC runs it each time, since installed code lies outside the project; what it writes decides what else runs.
"""

from mathrl.core.code_values import write_code
from mathrl.core.errors import exit_on_user_error


def main() -> None:
    if changed := write_code():
        print(f"changed code: {', '.join(changed)}")


if __name__ == "__main__":
    exit_on_user_error(main)
