"""The functions of `import mathrl` that the command line has as commands: docs/reference/api.md lists all names."""
