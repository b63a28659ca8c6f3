"""What compiles a decoder's programs: a compiler, the machine it is for, and what runs there."""
