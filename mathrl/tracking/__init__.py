"""The mirror of the stages' records in MLflow, lineage tags, registry aliases."""
