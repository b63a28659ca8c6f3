"""Parts for the layers of a model that is divided among cores."""
