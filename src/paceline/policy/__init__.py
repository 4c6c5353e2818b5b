"""Policies: what they are made of (`network`), how they act (`actor`), how they learn (torch)."""
