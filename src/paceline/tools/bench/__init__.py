"""Measuring what ways of running cost and gain."""
