"""One training run: its parts, budget, metrics, files, evaluation."""
