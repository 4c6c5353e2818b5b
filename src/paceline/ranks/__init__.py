"""Runs with several learners: launching their processes, and being one of them."""
