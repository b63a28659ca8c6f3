"""From a module to the graph that a compiler is given."""
