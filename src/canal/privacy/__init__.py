"""What a release costs, how its noise is spread, and how it is drawn. NumPy only; no deep learning.

To be read in this order, each on its own page:

==============  ================================================================================
`gaussian`      rho, mu and (epsilon, delta) of a Gaussian mechanism, both ways
`units`         whose privacy: patient, image, and the paper's mixture of the two
`precision`     what it costs that a computer draws the noise
`events`        what was published, and what all of it together promises
`budget`        how one budget is divided over caps, importance and release
`iteration`     what fresh noise at every training step would have cost
`allocation`    how noise is spread over channels: uniform, water-filling, reverse
`posterior`     positive scores from noisy ones
`keystore`      where a key is kept on this machine
`randomness`    the secret, its keys, and ChaCha20 streams
`ziggurat`      standard normals from such a stream
`lattice`       integer noise on integer sums
`chain`         rows that nobody edits unseen
`binding`       whose patients a cohort has
`ledger`        who may spend what, and what was spent
==============  ================================================================================
"""

from typing import TYPE_CHECKING

from canal.lazy import lazily

if TYPE_CHECKING:
    from canal.privacy.allocation import (
        cost,
        distortion,
        reverse_water_filling,
        uniform,
        water_filling,
    )
    from canal.privacy.budget import BudgetSplit
    from canal.privacy.events import GaussianEvent, Guarantee
    from canal.privacy.gaussian import (
        delta_from_rho,
        epsilon_from_rho,
        mu_from_rho,
        rho_from_epsilon,
        rho_from_mu,
    )
    from canal.privacy.iteration import Penalty, penalty, releases_per_image
    from canal.privacy.lattice import Lattice, rounded_gaussian
    from canal.privacy.ledger import Balance, Charge, Ledger, balances, head_of
    from canal.privacy.posterior import posterior_mean
    from canal.privacy.randomness import Secret, Stream
    from canal.privacy.units import ALL_UNITS, NEIGHBOURS, UNITS, Exposure, Participants, Unit

# Loaded when first asked for: the ledger does not wait for NumPy, nor a plan for OpenSSL.
_HOME = {
    "allocation": ("cost", "distortion", "reverse_water_filling", "uniform", "water_filling"),
    "budget": ("BudgetSplit",),
    "events": ("GaussianEvent", "Guarantee"),
    "gaussian": (
        "delta_from_rho",
        "epsilon_from_rho",
        "mu_from_rho",
        "rho_from_epsilon",
        "rho_from_mu",
    ),
    "iteration": ("Penalty", "penalty", "releases_per_image"),
    "lattice": ("Lattice", "rounded_gaussian"),
    "ledger": ("Balance", "Charge", "Ledger", "balances", "head_of"),
    "posterior": ("posterior_mean",),
    "randomness": ("Secret", "Stream"),
    "units": ("ALL_UNITS", "NEIGHBOURS", "UNITS", "Exposure", "Participants", "Unit"),
}

__all__ = [
    "ALL_UNITS",
    "NEIGHBOURS",
    "UNITS",
    "Balance",
    "BudgetSplit",
    "Charge",
    "Exposure",
    "GaussianEvent",
    "Guarantee",
    "Lattice",
    "Ledger",
    "Participants",
    "Penalty",
    "Secret",
    "Stream",
    "Unit",
    "balances",
    "cost",
    "delta_from_rho",
    "distortion",
    "epsilon_from_rho",
    "head_of",
    "mu_from_rho",
    "penalty",
    "posterior_mean",
    "releases_per_image",
    "reverse_water_filling",
    "rho_from_epsilon",
    "rho_from_mu",
    "rounded_gaussian",
    "uniform",
    "water_filling",
]

__getattr__ = lazily(__name__, {name: module for module, names in _HOME.items() for name in names})
