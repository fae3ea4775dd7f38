"""A site's end of FLARE, with the doors shut that a release does not need.

FLARE's client does for its server whatever the server asks: among other things it runs `cat` on
any file that its account can read, and it takes the server's word for who wants it. The permissions
of a kit bind an honest server only. So a site starts here: requests that no job needs are taken off
the list before the client sees it, and a server that asks for one hears that it is invalid.
"""

from __future__ import annotations

import runpy

# By the name of FLARE's class. Whatever a later version adds is shut out until it is put here.
NEEDED = {
    "AbortAppProcessor",
    "AbortTaskProcessor",
    "CancelResourceProcessor",
    "CheckResourceProcessor",
    "ClientStatusProcessor",
    "DeployProcessor",
    "NotifyJobStatusProcessor",
    "StartJobProcessor",
}


def shut_doors() -> list[str]:
    """Take off FLARE's list what no job needs; gives what is left."""
    from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors

    doors = ClientRequestProcessors.request_processors
    # In place: FLARE's deployer holds the same list.
    doors[:] = [door for door in doors if type(door).__name__ in NEEDED]
    return sorted(type(door).__name__ for door in doors)


if __name__ == "__main__":
    shut_doors()
    runpy.run_module("nvflare.private.fed.app.client.client_train", run_name="__main__")
