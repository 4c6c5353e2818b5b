"""Configuration: its schema, where options come from, and what can be plugged in."""
