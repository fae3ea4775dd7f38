"""The release: plan, statistics, mechanism, store."""
