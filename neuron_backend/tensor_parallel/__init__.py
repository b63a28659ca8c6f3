"""One model divided among several processes or cores."""
