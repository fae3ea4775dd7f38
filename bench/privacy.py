"""The privacy core: noise, accounting, and a plan from a cold start."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bench.ratio import Ratio, compare
from canal.privacy import Exposure, GaussianEvent, Guarantee, Secret, Stream, rounded_gaussian

DRAWS = 2_000_000


def ratios() -> Iterator[Ratio]:
    """Every comparison of the privacy core."""
    yield noise_against_opendp()
    yield noise_against_numpy()
    yield accounting_against_dp_accounting()
    yield plan_against_numpy_import()


def _noise() -> object:
    return rounded_gaussian(5000.0, (DRAWS,), Stream(Secret.seeded(0).key(b"bench")))


def noise_against_opendp() -> Ratio:
    """Integer Gaussian noise on a vector, the rival on a tenth of it."""
    import opendp.prelude as dp

    dp.enable_features("contrib")
    size = DRAWS // 10
    domain = dp.vector_domain(dp.atom_domain(T="i32"), size=size)
    measurement = dp.m.make_gaussian(domain, dp.l2_distance(T="f64"), scale=5000.0)
    zeros = [0] * size
    return compare(
        f"integer lattice noise, {DRAWS:.0e} draws",
        _noise,
        "OpenDP integer vector Gaussian",
        lambda: measurement(zeros),
        target=300,
        their_rounds=1,
        their_share=size / DRAWS,
    )


def noise_against_numpy() -> Ratio:
    """Our integers against NumPy's floats from a generator that is not cryptographic."""
    generator = np.random.Generator(np.random.PCG64(0))
    return compare(
        f"integer lattice noise, {DRAWS:.0e} draws",
        _noise,
        "numpy PCG64 standard_normal float64",
        lambda: generator.standard_normal(DRAWS),
        target=0.6,
        rounds=15,
    )


def accounting_against_dp_accounting() -> Ratio:
    """Exact epsilon of one release with 512 different sigmas."""
    import dp_accounting
    from dp_accounting import pld

    sigma = tuple(np.geomspace(20, 200, 512).tolist())
    event = GaussianEvent("features", sigma, {"image": Exposure(2.0)})
    promise = Guarantee((event,))
    exported = promise.to_dp_event("image")

    def theirs() -> float:
        accountant = pld.PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_SPECIAL)
        accountant.compose(exported)
        return float(accountant.get_epsilon(1e-5))

    return compare(
        "exact epsilon, 512 heterogeneous sigmas",
        lambda: promise.epsilon(1e-5, "image"),
        "dp-accounting PLD composition",
        theirs,
        target=1000,
        rounds=20,
        their_rounds=1,
    )


def plan_against_numpy_import() -> Ratio:
    """A whole process each: ours plans, the rival only imports NumPy."""
    canal = Path(sys.executable).parent / "canal"
    return compare(
        "canal plan, cold, whole process",
        lambda: subprocess.run([canal, "plan"], check=True, capture_output=True),
        'python -c "import numpy"',
        lambda: subprocess.run([sys.executable, "-c", "import numpy"], check=True),
        target=1 / 4,
        rounds=11,
    )
