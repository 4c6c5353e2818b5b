"""Stub."""


def measure(options):
    return {}
