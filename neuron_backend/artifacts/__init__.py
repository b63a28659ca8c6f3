"""File formats of a saved decoder: manifest, hashes, weights, programs, and which programs are trusted."""
