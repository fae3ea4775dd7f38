r"""A noisy integer sum: the one place where noise meets data.

Everything that a release publishes about private data is
$$\tilde s = \sum_k n_k + \mathrm{round}(\eta), \qquad \eta \sim \mathcal N(0, (\sigma/\gamma)^2),$$
with $n_k$ integers: what unit k of privacy (or a whole site) contributes, clipped and truncated
onto the lattice $\gamma\mathbb Z$. The noise is added once by a trusted aggregator (`perturb`), or
comes in shares, one of each site, of which only the sum is ever seen (`share`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from canal.privacy.lattice import Lattice, Storage, coarsen, rounded_gaussian
from canal.privacy.shares import check_share, share_std

if TYPE_CHECKING:
    from canal.privacy.randomness import Stream

Integers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class NoisySum:
    r"""How one sum gets its noise; all of it public.

    Guarantees:
        Integer arithmetic only. The result is a post-processing of the Gaussian mechanism with
        standard deviation `std`, whoever adds the noise: with shares, even for one who knows those
        of `colluding` sites. A value beyond the storage is saturated, never wrapped.

    Args:
        name: what is summed, as its event is called.
        lattice: of every contribution and of the noise.
        std: $\sigma$ of the noise that is accounted for, on the sum: one number, or one for each
            entry of the first axis; 0 for a sum that is published without noise.
        bound: the largest magnitude of the sum before noise.
        shares: in how many parts the noise is drawn; 1: by a trusted aggregator.
        colluding: t, the sites that may tell others their shares.
        shift: halvings that make a noisy sum fit its storage; as many as `std`.
        storage: integer type of what is published.
    """

    name: str
    lattice: Lattice
    std: NDArray[np.float64]
    bound: float
    shares: int = 1
    colluding: int = 0
    shift: NDArray[np.int64] = field(default_factory=lambda: np.zeros((), np.int64))
    storage: Storage = "int32"

    @property
    def noise_inflation(self) -> float:
        r"""How much wider the noise is for readers: $\sqrt{K/(K - t)}$."""
        return math.sqrt(self.shares / (self.shares - self.colluding))

    @property
    def share_steps(self) -> NDArray[np.float64]:
        """Standard deviation of one share, in lattice steps."""
        return share_std(self.std, self.shares, self.colluding) / self.lattice.step

    def perturb(self, total: ArrayLike, stream: Stream) -> NDArray[np.signedinteger]:
        """Add the noise to the sum over all sites, once.

        Where it comes in shares, add those of the `shares - colluding` sites that nobody tells: no
        release does that, it is what an audit draws.

        Args:
            total: integers; private.
            stream: of this one sum.
        """
        noisy = np.asarray(total, dtype=np.int64)
        if not self.std.any():
            return noisy
        if self.shares > 1:
            for _ in range(self.shares - self.colluding):
                noisy = self.share(noisy, stream)
            return noisy
        std = _along(self.std, noisy)
        return self.lattice.perturb(noisy, std, stream, bound=self.bound, storage="int32")

    def share(self, part: ArrayLike, stream: Stream) -> Integers:
        """Add a site's share of the noise to what the site contributes.

        Args:
            part: integers; private.
            stream: of this site and this sum.
        """
        steps, integers = self.share_steps, np.asarray(part, dtype=np.int64)
        check_share(steps)
        self.lattice.check(self.bound, self.std * self.noise_inflation, "int32")
        drawn = rounded_gaussian(_along(steps, integers), integers.shape, stream)
        drawn += integers
        return drawn

    def store(self, noisy: ArrayLike) -> NDArray[np.signedinteger]:
        """Fit a noisy sum into its storage; public post-processing."""
        return coarsen(noisy, _along(self.shift, np.asarray(noisy)), self.storage)


def _along(values: NDArray[Any], integers: NDArray[Any]) -> NDArray[Any]:
    """One value for each entry of the first axis, broadcast over the others."""
    return values.reshape(values.shape + (1,) * (integers.ndim - values.ndim))
