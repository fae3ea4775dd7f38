"""What a federation makes, made in one process: what it is compared with, to the byte."""

from canal.data.load import load
from canal.data.overlap import compare, digests
from canal.features.aggregator import aggregate
from canal.features.options import Options
from canal.features.sites import LocalSites
from canal.federation.aggregate import make_adapter_plan, read_queries
from canal.gradients.adapter import Adapter
from canal.gradients.cohorts import LocalCohorts
from canal.gradients.patients import Patients
from canal.gradients.rounds import aggregate as teach
from canal.gradients.shared import count_parameters, share
from canal.learning import checkpoint


def teach_alone(order, cohorts, folder):
    """The same order with the same seed; `cohorts` are the sites' folders of images, by name."""
    init = order.path(order.init)
    asked = read_queries(order, checkpoint.describe(init)).arrays
    adapter = Adapter.from_json(Adapter().to_json() | order.adapter)
    plan = make_adapter_plan(order, count_parameters(init, adapter), adapter, len(cohorts))
    shared = share(init, asked, adapter, plan.allocation, directions=plan.directions)
    sites = [Patients(site, load(images, size=32, channels=1)) for site, images in cohorts.items()]
    local = LocalCohorts(sites, shared.network, shared.coordinates)
    elsewhere = compare(None, shared.start.asked, shared.start.trained_on)
    return teach(folder, local, shared.start, plan, seed=order.seed, overlap=elsewhere)


def ask_alone(folder, ensemble, queries, plan, seed):
    """A release of features by the same teachers in one process, whose images nobody compared."""
    options = Options()
    return aggregate(
        *(folder, LocalSites(ensemble, queries, options), queries, plan),
        seed=seed,
        overlap=compare(None, frozenset(digests(queries.arrays)), frozenset()),
        options=options,
    )
