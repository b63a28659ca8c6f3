"""CPU programs whose equal layers are compiled once."""
