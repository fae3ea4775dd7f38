"""Experiments: tables and figures on real data, as resumable cells."""
