"""`mathrl sources`: list the named problem sets."""

from mathrl.cli.output import AsJson, print_document
from mathrl.data.registry import REGISTRY


def sources(as_json: AsJson = False) -> None:
    """List the named problem sets: hub id, splits, month of release, licence."""
    if as_json:
        fields = ("name", "title", "hub", "splits", "released", "licence", "evaluation")
        print_document(
            {"sources": [{field: getattr(REGISTRY[name], field) for field in fields} for name in sorted(REGISTRY)]}
        )
        return
    for name, source in sorted(REGISTRY.items()):
        print(f"{name:<22} {source.hub:<44} {', '.join(source.splits):<18} {source.released:<8} {source.licence}")
