"""Commands that measure and check; nothing in the rest of the package imports them."""
