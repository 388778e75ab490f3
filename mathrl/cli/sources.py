"""`mathrl sources`: list the named problem sets."""

from mathrl.data.registry import REGISTRY


def sources() -> None:
    """List the named problem sets: hub id, splits, month of release, licence."""
    for name, source in sorted(REGISTRY.items()):
        print(f"{name:<22} {source.hub:<44} {', '.join(source.splits):<18} {source.released:<8} {source.licence}")
