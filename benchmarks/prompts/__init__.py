"""Real prompts by kind, a JSON list of texts each."""
