"""Prefect tasks: prepare a workspace, run a stage in a process of its own, report what came out."""
