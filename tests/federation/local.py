"""An order for adapters, carried out in one process: what a federation is compared with."""

from canal.adapters.adapter import Adapter
from canal.adapters.cohorts import LocalCohorts
from canal.adapters.patients import Patients
from canal.adapters.rounds import train
from canal.adapters.shared import count_parameters, share
from canal.data.load import load
from canal.federation.aggregate import make_adapter_plan, read_queries
from canal.models import checkpoint


def teach_alone(order, cohorts, folder):
    """The same order with the same seed; `cohorts` are the sites' folders of images, by name."""
    init = order.path(order.init)
    asked = read_queries(order, checkpoint.describe(init)).arrays
    adapter = Adapter.from_json(Adapter().to_json() | order.adapter)
    plan = make_adapter_plan(order, count_parameters(init, adapter), adapter, len(cohorts))
    shared = share(init, asked, adapter, plan.allocation, directions=plan.directions)
    sites = [Patients(site, load(images, size=32, channels=1)) for site, images in cohorts.items()]
    local = LocalCohorts(sites, shared.network, shared.coordinates)
    return train(folder, local, shared.start, plan, seed=order.seed)
