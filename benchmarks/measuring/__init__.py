"""How a measurement is taken and reported: arguments, timing, the machine, the report."""
