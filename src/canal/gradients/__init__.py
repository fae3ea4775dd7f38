"""The gradient release: rounds of clipped per-patient gradients, summed over all sites, with noise.

==================  ===============================================================================
`target_modules`    which parameters are trained
`plan`              what is asked for, and what it costs
`gradients`         per-image gradients, many in one pass
`subspace`          the public subspace that gradients are projected on
`clip`              a patient's gradient: rescaled, bounded, on the lattice
`public`, `start`   scales and bounds, measured on the recipient's own images
`patients`          the patients of one site, and what each adds to a round
`mechanism`         the rounds as `canal.release.mechanism` has them
`release`           making a release in one process
`site`, `job`       a site's part across hosts, and what an order asks for
`update`            the server optimizer: from published sums to the next network
`store`             a release as its reader sees it
`statement`         what a statement and a card say of this mechanism alone
`verification`      what is particular in checking a release
`kind`              what `canal.release.registry` asks of a mechanism
==================  ===============================================================================
"""
