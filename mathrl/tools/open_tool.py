"""Open the tool that parameters describe."""

from mathrl.params.tools import Bubblewrap, Http, Tools
from mathrl.tools.http_tool import HttpTool
from mathrl.tools.pool import Pool
from mathrl.tools.tool import Tool


def open_tool(parameters: Tools) -> Tool:
    """The tool that the parameters describe; close it after use.

    Raises:
        UserError: the tool cannot run here (bubblewrap is missing or may not create namespaces; the server does not
            answer); the message says what to install or start.
        ValueError: `kind` is none.
    """
    if isinstance(parameters, Bubblewrap):
        return Pool(parameters)
    if isinstance(parameters, Http):
        return HttpTool(parameters)
    raise ValueError("kind is none: there is no tool to open")
