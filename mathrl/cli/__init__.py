"""The `mathrl` command. Heavy imports wait until a command needs them, so that --help answers at once."""

from mathrl.cli.main import main

__all__ = ["main"]
