"""The command line: one file a command, and the only room that prints.

A command is a module here with ``Command``, a dataclass (or a union of them, each named with
`tyro.conf.subcommand`) with a method ``run``, and a line in `elbowroom.cli.main.COMMANDS`.
"""
