"""The patient-level release: noisy rounds on some parameters of the shared network.

==============  ==============================================================
`adapter`       which parameters, as one vector
`product`       two thin convolutions beside a thick one
`norm`          normalisation with weights for every image
`gradients`     of every image on its own, many in one pass
`machine`       whether this one keeps patients apart, to the bit
`basis`         few directions that public gradients vary in
`moments`       of public gradients, which give the basis
`clip`          one patient's part: rescaled, bounded, on the lattice
`curvature`     where noise harms the recipient's own loss
`public`        scales and bounds, measured on the recipient's own images
`plan`          what is asked for, and what it costs
`advice`        how many directions and which step suit the noise
`mechanism`     sums as integers, with integer noise
`patients`      those of one site, and what they add
`cohorts`       all sites, in one process or elsewhere
`shared`        the network that everybody holds, as the rounds want it
`start`         where the rounds begin
`agreement`     what every site agrees to before the first round
`rounds`        claims, pays, asks round after round, publishes
`update`        from published sums to the next network
`statement`     what only this mechanism promises, and what it does not
`card`          the same for whoever signs
`store`         a release as its reader sees it
`verification`  every number of it derived again
`taught`        the network that it leads to, as a checkpoint
`kind`          what `canal.release.registry` asks of it
==============  ==============================================================
"""
