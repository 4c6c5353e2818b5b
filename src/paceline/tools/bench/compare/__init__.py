"""`paceline compare`: which runs are better, and whether that may be chance."""
