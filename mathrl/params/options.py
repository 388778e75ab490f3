"""The base class of the typed options of reward parts and generators."""

from typing import Any

from pydantic import ConfigDict, SerializerFunctionWrapHandler, model_serializer

from mathrl.params.section import Section


class Options(Section):
    """Options of one reward part or generator; dumped as they were written, without defaults."""

    @model_serializer(mode="wrap")
    def _as_written(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in dump(self).items() if name in self.model_fields_set}

    def values(self) -> dict[str, Any]:
        """Every option with its value, defaults included: keyword arguments of a function."""
        return dict(self)


class FreeOptions(Options):
    """Options whose names only a user's function knows."""

    model_config = ConfigDict(extra="allow")
