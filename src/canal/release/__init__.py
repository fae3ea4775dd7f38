"""The release, in the order in which it is made, each on its own page.

================  ==============================================================================
`plan`            what is asked for, before any data is touched
`forecast`        what that will cost and carry
`calibration`     the plan with every sigma fixed
`queries`         the recipient's images
`ensemble`        the teachers
`clipping`        what makes a sensitivity true
`statistics`      caps and importance, paid for or public
`mechanism`       the mean of clipped bottlenecks, with noise added once
`noise`           whose streams noise comes from, and what each is bound to
`agreement`       all that is public before it is made, and binds everyone
`charges`         who pays, and how much
`rows`            from query images to stored integers: sum over teachers, noise once
`sites`           who hold the teachers, asked for sums: here, or elsewhere
`workspace`       the private folder in which a release grows
`options`         what cannot change a guarantee
`aggregator`      pay, claim, draw, publish
`shard`           the integers of some queries in a file
`manifest`        what the folder holds and promises
`record`          what its makers say about it: day, purpose, contact, code
`promise`         to one unit: the numbers, and a sentence
`statement`       all that is promised, to whom, and what is not
`card`, `chart`   the same as a page to sign
`store`           a release as its reader sees it
`verification`    checking it without trusting whoever made it
`verdict`         what a reader is told of that: a patient's epsilon first
`account`         pricing it again
`per_iteration`   the rival: fresh noise whenever a student asks
================  ==============================================================================
"""

from typing import TYPE_CHECKING

from canal.lazy import lazily

if TYPE_CHECKING:
    from canal.release.aggregator import create
    from canal.release.ensemble import Ensemble, Teacher, load_ensemble
    from canal.release.per_iteration import PerIterationRelease
    from canal.release.plan import Plan
    from canal.release.queries import Queries
    from canal.release.record import About
    from canal.release.store import Release
    from canal.release.verification import verify

# Loaded when first asked for: a plan does not wait for torch.
_HOME = {
    "About": "record",
    "Ensemble": "ensemble",
    "PerIterationRelease": "per_iteration",
    "Plan": "plan",
    "Queries": "queries",
    "Release": "store",
    "Teacher": "ensemble",
    "create": "aggregator",
    "load_ensemble": "ensemble",
    "verify": "verification",
}

__all__ = [
    "About",
    "Ensemble",
    "PerIterationRelease",
    "Plan",
    "Queries",
    "Release",
    "Teacher",
    "create",
    "load_ensemble",
    "verify",
]

__getattr__ = lazily(__name__, _HOME)
