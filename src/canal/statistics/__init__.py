"""Statistics of cohorts: how many patients there are, and what their images are like, with noise.

What a consortium wants to know before it trains anything: the number of patients, and histograms of
lesion area, mean intensity and image size.
"""
