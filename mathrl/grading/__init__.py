r"""The verifier of mathematical answers: text in, verdict out. Needs neither torch nor an orchestrator.

>>> from mathrl.grading import grade
>>> grade("The answer is $\\boxed{\\frac{1}{2}}$.", "0.5").correct
True
"""

from mathrl.grading.grade import grade, warm_up
from mathrl.grading.parallel import grade_batch
from mathrl.grading.verdict import Verdict

__all__ = ["Verdict", "grade", "grade_batch", "warm_up"]
