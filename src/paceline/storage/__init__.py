"""Files, locks and checkpoints."""
