"""What a user would pick instead, at the same epsilon of the same patients.

============  ==============================================================
`dpsgd`       a network trained by Opacus, at a site or over the union
`votes`       teachers vote on every pixel of the queries, with noise (PATE)
`pupil`       a student of what others say about images
============  ==============================================================
"""
