"""`paceline tune`: the fastest way to train on this machine."""
