"""Processes: hardware, starting, watching and ending them, and what they send each other."""
