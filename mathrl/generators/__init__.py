"""Seeded generators of problems with a verifiable answer and a worked solution: no file, no download."""

from mathrl.generators.generate import GENERATORS, VERSIONS, generate, make_generator

__all__ = ["GENERATORS", "VERSIONS", "generate", "make_generator"]
