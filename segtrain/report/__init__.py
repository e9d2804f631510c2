"""How did a run go, on one page? The page of a run, and the comparison of two."""
