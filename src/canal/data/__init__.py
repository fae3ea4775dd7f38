"""Data: readers of official downloads, checks, near-duplicates, splits, cache, synthetic cases."""
