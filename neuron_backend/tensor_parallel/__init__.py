"""One model divided among top_choices processes or cores."""
