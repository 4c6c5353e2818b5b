"""Faults and hostile inputs, one file per area; `benchmarks/faults.py` runs them."""
