"""Lowering of modules to graphs that compilers take: export, and rewrites of exported graphs."""
