"""Models that benchmarks measure: random weights of named shapes, a model of the user's, the bundled pair."""
