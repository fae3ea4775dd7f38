"""What runs inside NVIDIA FLARE: our one class at the server, and our one class at a site.

A job names these two classes and brings no code; the kits allow nothing else. Messages do not
travel as FLARE's tasks: a task is fetched by polling and wrapped in a container for models. They
are plain bytes on a channel of ours between the two processes of a job, which FLARE streams.

This module is loaded by FLARE, and is the only one that cannot be imported without it.
"""

from __future__ import annotations

import fcntl
import json
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any

from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.cellnet.defs import ReturnCode as CellReturnCode
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.cellnet.utils import make_reply as make_cell_reply
from nvflare.fuel.f3.message import Message

from canal.errors import CanalError, FederationError
from canal.federation.console import OUTCOME
from canal.federation.kit import own_folder
from canal.federation.transport import SECONDS, check_known, gather

CHANNEL = "canal"
ASK = "ask"
BYE = "bye"
HELLO = "hello"
SERVER = "server"


class FlareTransport:
    """Sites in processes of their own, on hosts of their own, over FLARE's mutual TLS.

    Args:
        cell: FLARE's end of the wire in this job.
        job: its id; a site's process of this job is addressed by it.
        sites: their names.
        stop: triggered when the job is to end; whoever waits then stops waiting.
        seconds: to wait for an answer.
    """

    def __init__(
        self, cell: Any, job: str, sites: tuple[str, ...], stop: Signal, *, seconds: float = SECONDS
    ) -> None:
        self.sites = sites
        self._cell = cell
        self._job = job
        self._stop = stop
        self._seconds = seconds
        self._parted: set[str] = set()
        cell.register_request_cb(channel=CHANNEL, topic=BYE, cb=self._part)

    def ask(self, requests: Mapping[str, bytes]) -> dict[str, bytes]:
        """See `Transport.ask`. A thread that asks while another does keeps the wire busy."""
        check_known(requests, self.sites)
        return gather(requests, self._ask, self._seconds)

    def _ask(self, name: str, message: bytes) -> bytes:
        code, answer = self._send(name, message)
        if code == CellReturnCode.OK:
            return answer
        if self._stop.triggered:
            raise FederationError("stopped with the job" if name in self._parted else "gone")
        raise FederationError(_meaning(code))

    def _part(self, message: Message) -> Message:
        """Note who takes leave: FLARE ends a job for one lost process, and does not say whose."""
        self._parted.add(FQCN.split(message.get_header(MessageHeaderKey.ORIGIN) or "?")[0])
        return make_cell_reply(CellReturnCode.OK)

    def _send(self, name: str, message: bytes) -> tuple[str, bytes]:
        reply = self._cell.send_request(
            channel=CHANNEL,
            topic=ASK,
            target=FQCN.join([name, self._job]),
            request=Message({}, message),
            timeout=self._seconds,
            optional=True,
            abort_signal=self._stop,
        )
        code = reply.get_header(MessageHeaderKey.RETURN_CODE, CellReturnCode.OK)
        return str(code), bytes(reply.payload or b"")


def _meaning(code: str) -> str:
    """What FLARE's return code says of a site."""
    known = {
        CellReturnCode.TIMEOUT: "silent",
        CellReturnCode.TARGET_UNREACHABLE: "not connected",
        CellReturnCode.COMM_ERROR: "not connected",
        CellReturnCode.PROCESS_EXCEPTION: "could not handle the message; its log says why",
    }
    return known.get(code, code)


class Aggregation(Controller):  # type: ignore[misc]
    """The server's part of a job: greets the sites, then runs the order.

    Args:
        order: path, on the server's host, of what is to be done.
        sites: who takes part; all of them, or there is no job.
        seconds: to wait for an answer.
    """

    def __init__(self, order: str, sites: list[str], seconds: float = SECONDS) -> None:
        super().__init__()
        self._order = Path(order)
        self._sites = tuple(sites)
        self._seconds = float(seconds)
        self._present: set[str] = set()

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Nothing to prepare."""

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Nothing to take down."""

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Run the order; what it raises ends the job, with the reason in the server's log."""
        try:
            self._greet(abort_signal, fl_ctx)
            from canal.federation.aggregate import run

            cell = fl_ctx.get_engine().get_cell()
            job = fl_ctx.get_job_id()
            run(
                self._order,
                FlareTransport(cell, job, self._sites, abort_signal, seconds=self._seconds),
            )
            self._leave("", fl_ctx)
        except Exception as error:
            known = isinstance(error, CanalError)
            reason = str(error) if known else f"{type(error).__name__}: {error}"
            self._leave(reason, fl_ctx)
            self.log_exception(fl_ctx, reason)
            self.system_panic(reason, fl_ctx)

    def _leave(self, reason: str, fl_ctx: FLContext) -> None:
        """Put what came of the order among what FLARE keeps of a job for the one who submitted."""
        folder = fl_ctx.get_engine().get_workspace().get_run_dir(fl_ctx.get_job_id())
        content = {"complete": not reason, "reason": reason}
        Path(folder, OUTCOME).write_text(json.dumps(content) + "\n")

    def _greet(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Wait until every site has its teacher and ledger open, and listens."""
        server = fl_ctx.get_engine().get_cell().get_fqcn()
        hello = Shareable({SERVER: server})
        task = Task(HELLO, hello, timeout=int(self._seconds), result_received_cb=self._note)
        self.broadcast_and_wait(
            task,
            fl_ctx,
            targets=list(self._sites),
            min_responses=len(self._sites),
            abort_signal=abort_signal,
        )
        if absent := [name for name in self._sites if name not in self._present]:
            raise FederationError(
                f"{', '.join(absent)} could not start; the log of each says why, and nothing was "
                "asked of anyone"
            )

    def _note(self, client_task: ClientTask, fl_ctx: FLContext) -> None:  # noqa: ARG002
        if client_task.result.get_return_code() == ReturnCode.OK:
            self._present.add(client_task.client.name)

    def process_result_of_unknown_task(
        self, client: Any, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None:
        """A greeting that came too late; the job has ended by then."""


class Hospital(Executor):  # type: ignore[misc]
    """A site's part of a job: opens what is the site's own, and passes messages to it.

    It takes no arguments, so that a job has nothing to choose here.
    """

    def __init__(self) -> None:
        super().__init__()
        self._answer: Callable[[bytes], bytes] | None = None
        self._lock: IO[str] | None = None
        self._bye: Callable[..., object] | None = None
        # One message at a time: a site has one ledger and one teacher. Others wait their turn
        # in memory, so the next request travels while this one is worked on.
        self._turn = threading.Lock()

    def execute(
        self,
        task_name: str,
        shareable: Shareable,
        fl_ctx: FLContext,
        abort_signal: Signal,  # noqa: ARG002
    ) -> Shareable:
        """Answer the greeting: open the site's folder, once, and listen."""
        if task_name != HELLO:
            return make_reply(ReturnCode.TASK_UNKNOWN)
        try:
            if self._answer is None:
                self._answer = self._open(fl_ctx)
                cell = fl_ctx.get_engine().get_cell()
                cell.register_request_cb(channel=CHANNEL, topic=ASK, cb=self._hear)
                self._bye = partial(
                    cell.fire_and_forget,
                    channel=CHANNEL,
                    topic=BYE,
                    targets=str(shareable[SERVER]),
                    optional=True,
                )
        except Exception as error:
            # The reason stays here: it may name files of the hospital.
            self.log_error(fl_ctx, f"this site cannot take part: {error}", fire_event=False)
            return make_reply(ReturnCode.EXECUTION_EXCEPTION)
        return make_reply(ReturnCode.OK)

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:  # noqa: ARG002
        """Take leave when the job ends, so that the server can tell who is lost and who obeys."""
        if event_type == EventType.ABOUT_TO_END_RUN and self._bye is not None:
            self._bye(message=Message({}, b""))

    def _open(self, fl_ctx: FLContext) -> Callable[[bytes], bytes]:
        """What answers for this site, from its own settings and nothing else."""
        from canal.federation.site import Site

        local = Path(fl_ctx.get_engine().get_workspace().get_site_config_dir())
        folder = own_folder(local, fl_ctx.get_identity_name())
        self._lock = take(folder)
        return Site.open(folder).answer

    def _hear(self, request: Message) -> Message:
        # Sites have no reason to talk to each other, though FLARE would carry it.
        origin = FQCN.split(request.get_header(MessageHeaderKey.ORIGIN) or "?")[0]
        if origin != FQCN.ROOT_SERVER or self._answer is None:
            return make_cell_reply(CellReturnCode.UNAUTHENTICATED)
        with self._turn:
            answer = self._answer(bytes(request.payload or b""))
        return make_cell_reply(CellReturnCode.OK, body=answer)


def take(folder: Path, *, seconds: float = 30.0) -> IO[str]:
    """Be the one process that answers for a site, until it ends.

    When a server was killed, the job before is still being stopped while the next one starts.

    Args:
        folder: the site's canal folder.
        seconds: to wait for an earlier process to end.

    Raises:
        FederationError: it did not.
    """
    lock = (folder / "job.lock").open("a")
    end = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except BlockingIOError as error:
            if time.monotonic() > end:
                lock.close()
                raise FederationError(
                    f"another job is at work in {folder}; wait for it, or end its process"
                ) from error
            time.sleep(0.2)
