"""`paceline scale`: what more processes gain on this machine."""
