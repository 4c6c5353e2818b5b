"""`paceline bench`: every algorithm in every way of running."""
