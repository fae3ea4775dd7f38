"""Speed as ratios against named rivals, each pair measured in one run: `make bench`."""
