"""Files, locks and checkpoints: written whole or not at all."""
