"""Runs of other trainers: their folder, read as metrics, rollouts and configuration, and written as a record."""
