"""Which of several answers are equal to one another."""

from collections.abc import Callable, Iterable


def equal_classes(answers: Iterable[str], equal: Callable[[str, str], bool]) -> list[list[str]]:
    """The distinct answers in classes of equal ones.

    Answers that equal one and the same third answer are one class, so the order of the answers does not matter.

    >>> equal_classes([".5", "7", "0.5", "7"], lambda a, b: float(a) == float(b))
    [['7'], ['.5', '0.5']]
    """
    classes: list[list[str]] = []
    for answer in dict.fromkeys(answers):
        joined = [members for members in classes if any(equal(member, answer) for member in members)]
        classes = [members for members in classes if members not in joined]
        classes.append([*(member for members in joined for member in members), answer])
    return classes
