r"""The verifier of mathematical answers: text in, verdict out. Needs neither torch nor an orchestrator.

>>> from mathrl.grading import grade
>>> grade("The answer is $\\boxed{\\frac{1}{2}}$.", "0.5").correct
True
"""

from mathrl.grading.compare import compare, reading
from mathrl.grading.countdown import NotAnExpression, countdown_correct, evaluate_expression, read_truth
from mathrl.grading.engine import SymbolicEngine
from mathrl.grading.extract import ExtractionMode, extract
from mathrl.grading.grade import Verdict, equal_answers, equal_classes, grade, grade_batch, warm_up
from mathrl.grading.instructions import CHECKS, instruction_fault, read_instructions
from mathrl.grading.words import leading_option, option, option_set

__all__ = [
    "CHECKS",
    "ExtractionMode",
    "NotAnExpression",
    "SymbolicEngine",
    "Verdict",
    "compare",
    "countdown_correct",
    "equal_answers",
    "equal_classes",
    "evaluate_expression",
    "extract",
    "grade",
    "grade_batch",
    "instruction_fault",
    "leading_option",
    "option",
    "option_set",
    "read_instructions",
    "read_truth",
    "reading",
    "warm_up",
]
