"""Steps cut into their layers, of which equal ones are compiled once."""
