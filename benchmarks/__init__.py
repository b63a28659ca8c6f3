"""
All measuring: ``python -m decodekit bench NAME`` runs any benchmark.

A benchmark is a module with ``add_arguments(parser)`` and ``run(options)``; its docstring states the one
question that it answers. ``command_line.py`` lists them all.
"""
