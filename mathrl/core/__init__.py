"""Data types, records of runs and small tools that every room shares. Imports nothing heavy."""
