"""What a federation makes, made in one process: what it is compared with, to the byte."""

from canal.data.load import load
from canal.data.overlap import compare, digests
from canal.features.release import mechanism_of as features_of
from canal.features.store import Release
from canal.federation.aggregate import Parties, read_images
from canal.federation.transport import InMemory
from canal.gradients.job import make_plan
from canal.gradients.patients import Patients
from canal.gradients.release import mechanism_of as rounds_of
from canal.gradients.start import count_parameters, share
from canal.gradients.store import AdapterRelease
from canal.gradients.target_modules import Adapter
from canal.learning import checkpoint
from canal.release.mechanism import LocalFederation
from canal.release.publish import publish


def teach_alone(order, cohorts, folder):
    """The same order with the same seed; `cohorts` are the sites' folders of images, by name."""
    init = order.path(order.init)
    asked = read_images(order, checkpoint.describe(init))
    adapter = Adapter.from_json(Adapter().to_json() | order.adapter)
    parties = Parties(order, InMemory({}))
    plan = make_plan(order, parties, count_parameters(init, adapter), adapter, len(cohorts))
    shared = share(init, asked, adapter, plan.allocation, directions=plan.directions)
    sites = [Patients(site, load(images, size=32, channels=1)) for site, images in cohorts.items()]
    elsewhere = compare(None, shared.start.asked, shared.start.trained_on)
    federation = LocalFederation(sites)
    mechanism = rounds_of(folder, shared, plan, federation.cohorts, seed=order.seed)
    publish(folder, mechanism, federation, overlap=elsewhere)
    return AdapterRelease.open(folder)


def ask_alone(folder, ensemble, queries, plan, seed):
    """A release of features by the same teachers in one process, whose images nobody compared."""
    mechanism = features_of(plan, ensemble, queries, seed=seed)
    elsewhere = compare(None, frozenset(digests(queries.arrays)), frozenset())
    publish(folder, mechanism, LocalFederation(ensemble.teachers), overlap=elsewhere)
    return Release.open(folder)
