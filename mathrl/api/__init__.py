"""The functions of `import mathrl` that the command line has as commands; docs/api.md lists every public name."""
