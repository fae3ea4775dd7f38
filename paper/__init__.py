"""The paper's experiments and those of the documentation, over the public API of `canal`.

Not part of the package: it runs from a checkout, and reads and writes beside it.

==================  ===========================================================================
`scenario`          data, split and shared networks of one seed
`trial`             one arm in one scenario: its key, its line of results, the runner
`arms`              networks, students of feature releases, and their controls
`rounds`            DP gradient rounds, and what is measured before them
`rivals`            DP-SGD, noisy votes (PATE) and self-training at the same epsilon
`attacks`           what an adversary gets from a release
`alignment`         whether channels of two teachers mean the same
`estimates`         means, paired differences and intervals over seeds and patients
`comparison`        rows of arms over the same seeds, and what one gains over another
`feature_tables`    tables of `docs/results.md` and `docs/teachers.md`
`gradient_tables`   tables of `docs/adapters.md` and `docs/adapters-method.md`
`attack_tables`     tables of `docs/attacks.md`
`drawing`           figures as SVG
`grids`             every table and figure: its trials, its document
`documents`         tables and figures put into the documents, or compared with them
==================  ===========================================================================

```
python -m paper run GRID --data DATA --jobs 2 --seeds N    make the trials of a grid
python -m paper tables                                     write every table and figure
```
"""
