"""The patient-level release: noisy rounds on some parameters of the shared network.

=============  ==============================================================
`adapter`      which parameters, as one vector
`gradients`    of every image on its own, many in one pass
`clip`         one patient's part: rescaled, bounded, on the lattice
`curvature`    where noise harms the recipient's own loss
`public`       scales and bounds, measured on the recipient's own images
`plan`         what is asked for, and what it costs
`mechanism`    sums as integers, with integer noise
`patients`     those of one site, and what they add
`start`        where the rounds begin
`rounds`       claims, pays, asks round after round, publishes
`update`       from published sums to the next network
`store`        a release as its reader sees it
`taught`       the network that it leads to, as a checkpoint
`kinds`        a folder of features or of adapters, whichever it is
=============  ==============================================================
"""
