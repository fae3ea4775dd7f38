"""Make one release in a process of its own, which may die of it.

Arguments: where to publish, a ledger, the folder of the initialisation, and at which sync of a
file to kill itself (0 for none). Says how many syncs there were.
"""

import hashlib
import os
import secrets
import signal
import sys
from itertools import count
from pathlib import Path

import torch

from canal.data.arrays import Arrays
from canal.data.synthetic import generate
from canal.gradients.patients import Patients
from canal.gradients.plan import AdapterPlan
from canal.gradients.release import train
from canal.gradients.start import share
from gradients.place import FEW

SECRET = hashlib.sha256(b"thirty-two bytes, the same in every run").digest()


def images_of(hospital, number):
    drawn = generate(number, size=(32, 32), hospital=hospital)
    groups = dict(zip(drawn.ids, drawn.patients, strict=True))
    return Arrays(drawn.ids, drawn.images, drawn.masks, f"{number} of {hospital}", patients=groups)


def main(out, ledger, init, kill_at):
    torch.set_num_threads(1)
    secrets.token_bytes = lambda size: SECRET
    shared = share(Path(init), images_of("endoscopy", 4), FEW, "flat", chunk=4)
    sites = [Patients(name, images_of(name, 6), chunk=4) for name in ("dermoscopy", "ultrasound")]
    plan = AdapterPlan(8.0, 12, len(shared.coordinates), sites=2, rounds=3, count=0.05, adapter=FEW)
    calls, fsync = count(1), os.fsync

    def counted(handle):
        if next(calls) == int(kill_at):
            os.kill(os.getpid(), signal.SIGKILL)
        fsync(handle)

    os.fsync = counted
    train(Path(out), sites, shared, plan, ledger=Path(ledger))
    sys.stdout.write(str(next(calls) - 1))


if __name__ == "__main__":
    main(*sys.argv[1:])
