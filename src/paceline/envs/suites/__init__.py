"""Suites of environments, one file each."""
