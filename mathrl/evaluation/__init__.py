"""Evaluation: benchmarks, pass@k, maj@k, intervals, paired tests, and their figures and verdicts."""
