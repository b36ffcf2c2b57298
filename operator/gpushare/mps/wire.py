"""The files and messages by which agent, supervisor and attach broker communicate on a node.

Files are replaced atomically and carry a version, because during an upgrade the three are of different releases.
Unknown fields are ignored. A reason that only the other release knows is told in its words, and hides nothing
else of the file: without the server's PID nobody could end a departing client in order.

What is read is checked against types and bounds here, what is written is not. All of it imports no pydantic, which
takes 10 MiB of each process: supervisor and broker run on every node, and need nothing else of the API's models.
"""

from enum import StrEnum
from typing import Annotated, Any, Literal, TypeVar

from msgspec import DecodeError, Meta, Struct, ValidationError, convert, field, json

from gpushare.api.conditions import DaemonReason

FRESH_SECONDS = 10.0
"""Supervisor and NVML are read every 2 s. A reading that is older than five intervals no longer counts."""
AHEAD_SECONDS = 1.0
"""A file may have been written so long after its reader looked at the clock."""
MAX_ARRIVALS, MAX_REFUSALS, MAX_STOPPING, MAX_UNATTACHED = 64, 32, 64, 64
MAX_ACTIVE, MAX_GAVE_WAY_TO, MAX_LONGEST = 64, 4, 5
MAX_PLACES, MAX_QUEUED = 64, 256
WAIT_BUCKETS = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 1800.0, 3600.0, 7200.0, 14400.0, 43200.0, 86400.0)
"""Seconds: the upper bounds of the histogram of waits for a place."""

Count = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Percent = Annotated[int, Meta(ge=1, le=100)]
Message = Annotated[str, Meta(max_length=1024)]
Note = Annotated[str, Meta(max_length=512)]
Model = TypeVar("Model", bound="WireModel")


class WireModel(Struct, frozen=True, kw_only=True, rename="camel"):
    """camelCase in JSON, snake_case in Python. Its values are not to be changed; `msgspec.structs.replace` copies."""

    @classmethod
    def known(cls, data: dict[str, Any]) -> dict[str, Any]:
        """`data` as another release may have written it, in words that this one knows."""
        return data


class DaemonLimits(WireModel, frozen=True, kw_only=True):
    """The ceiling of each MPS client process of a GPU: a share's limits, as its MPS daemon gets them.

    `gpushare.api.gpunode.Limits` is the same for the Kubernetes API, whose schema is made from pydantic's models.
    """

    threads: Percent  # of the SMs
    memory_mib: Positive


class DesiredDaemon(WireModel, frozen=True, kw_only=True):
    """daemon.json, written by the agent.

    `limits`: to be written to the daemon and the running server, and read back. `stop`: refuse new clients, and quit
    once there is no client. `shows_grant`: containers see their grant as the GPU's memory; `has_classes`: they have a
    class; both for an agent that does not know the share yet.
    """

    version: Literal[1] = 1
    uuid: str
    share: str
    limits: DaemonLimits
    stop: bool = False
    shows_grant: bool = False
    has_classes: bool = False


class ServedClient(WireModel, frozen=True, kw_only=True):
    """A process by the PID under which the MPS server lists it, and how many contexts it has."""

    pid: int
    contexts: Count


class DaemonState(WireModel, frozen=True, kw_only=True):
    """state.json, written by the supervisor at every change and at least every few seconds.

    Times are CLOCK_BOOTTIME seconds: a clock that cannot jump.
    """

    version: Literal[1] = 1
    uuid: str
    share: str
    heartbeat: float
    """When this was written."""
    reason: DaemonReason
    message: Message = ""
    control_pid: int | None = None
    server_pid: int | None = None
    server_status: str = ""
    """get_server_status, such as ACTIVE."""
    in_force: DaemonLimits | None = None
    """Read back from daemon and live server."""
    restarts: int = 0
    servers_lost: int = 0
    """Times a server ended that the supervisor had not ended."""
    last_failure: Message = ""
    """How daemon or server ended last."""
    lost_contexts: Count = 0
    """Client contexts that ended with daemons and servers, as `restarts` and `servers_lost` count those."""
    contexts: Count = 0
    """Client contexts that the server holds."""
    clients: Annotated[list[ServedClient], Meta(max_length=256)] | None = None
    """Whose contexts these are; None: a supervisor of another release does not say."""
    faults: int = 0
    """Number of fatal faults: a server in FAULT, or one that let the GPU go."""
    last_fault: Message = ""
    fault_since: float | None = None
    """When the current server was first observed in FAULT."""
    faulted_clients: Annotated[list[int], Meta(max_length=64)] = field(default_factory=list)
    """PIDs that keep the server from being replaced."""
    stopped: bool = False
    """The daemon has ended as requested; its sockets are gone."""
    protocol: Annotated[str, Meta(max_length=16)] = "V2"
    """An MpsProtocol: what the daemon speaks."""

    @classmethod
    def known(cls, data: dict[str, Any]) -> dict[str, Any]:
        fields: dict[str, Any] = _known_reason(data, DaemonReason, DaemonReason.UNKNOWN, 1024)
        return fields

    @property
    def ready(self) -> bool:
        return self.reason is DaemonReason.READY


class ClientGrant(WireModel, frozen=True, kw_only=True):
    """What each process of a container may use, and how many of them may attach. `contexts`: the most that they may
    have together; 0: an agent of another release does not say. `client_class`: a ClientClass, perhaps of another
    release; empty: the share uses none. `sm_percent`: of a best-effort client, of the GPU's SMs while a protected one
    is active; 0: all.
    """

    threads: Percent  # of the SMs
    memory_mib: Positive
    processes: Positive
    contexts: Count = 0
    client_class: Annotated[str, Meta(max_length=16)] = field(default="", name="class")
    sm_percent: Annotated[int, Meta(ge=0, le=100)] = 0


class TurnRequest(ClientGrant, frozen=True, kw_only=True):
    """What a client is to get, by which the broker asks for a turn. `namespace`: its container's, under protocol v3."""

    namespace: Annotated[str, Meta(max_length=64)] = ""


class TurnAnswer(WireModel, frozen=True, kw_only=True):
    """The supervisor's answer to a TurnRequest: `server_pid` or `wait` is set.

    `server_pid`: its limits are the grant's now, until the broker hangs up; or, where `namespace` is set, that
    namespace has them, and its socket is client/<namespace>. `wait`: why there is no turn now.
    """

    server_pid: int = 0
    wait: Note = ""
    namespace: Annotated[str, Meta(max_length=64)] = ""


class SocketsAction(StrEnum):
    KEEP = "Keep"
    GIVE = "Give"


class SocketsRequest(WireModel, frozen=True, kw_only=True):
    """The broker's: to keep its listening socket, which is `inode` by name, and the two ends of its queue, which come
    with this; or to give it those that are kept, or new ones.
    """

    action: SocketsAction
    inode: Count = 0


class SocketsAnswer(WireModel, frozen=True, kw_only=True):
    """The supervisor's: why not; or the inode of the listening socket's name, with the sockets where it gives them."""

    refused: Note = ""
    inode: Count = 0


class QueuedKind(StrEnum):
    CLIENT = "Client"  # its connection; it was greeted
    ASKED = "Asked"  # a connection to the MPS daemon, which was asked for a socket
    PASSED = "Passed"  # a client's socket to the server, which the client may have got


class QueuedSocket(WireModel, frozen=True, kw_only=True):
    """What the broker puts into its queue beside a socket. `number`: of this entry. `client`: that of the client's
    connection, for whom the socket is. `pid`, `started`: the client's. `server_pid`, `namespace`: of the turn.
    `context`: it asks for a context, which needs a place; `since`: it waits for one, since CLOCK_BOOTTIME seconds.
    """

    kind: QueuedKind
    number: Count = 0
    client: Count = 0
    pid: Count = 0
    started: Count = 0
    server_pid: Count = 0
    namespace: Annotated[str, Meta(max_length=64)] = ""
    context: bool = False
    since: Seconds = 0.0


class ServedClients(WireModel, frozen=True, kw_only=True):
    """client/clients.json, written by the supervisor of a daemon of protocol v3: whom its server lists, by PID."""

    version: Literal[1] = 1
    pids: Annotated[list[int], Meta(max_length=256)] = field(default_factory=list)


class GrantedContainer(WireModel, frozen=True, kw_only=True):
    """`id`: the runtime's; empty until the pod's status shows it. `grant` None: it holds no part of this GPU, or
    `too_many_protected`: it is Protected, and the GPU has as many protected clients as its share allows.
    """

    name: str
    id: str = ""
    grant: ClientGrant | None = None
    too_many_protected: bool = False


class GrantedPod(WireModel, frozen=True, kw_only=True):
    """A pod that holds a part of this GPU, with all its containers. `uid`: as the kubelet names the pod's cgroups."""

    uid: str
    namespace: str
    name: str
    containers: Annotated[list[GrantedContainer], Meta(max_length=128)]


class GpuGrants(WireModel, frozen=True, kw_only=True):
    """grants.json, written by the agent: who may attach to this GPU.

    `closed`: why the GPU takes no new client now; empty: it takes them. `places`: so many containers may have contexts
    on it at the same time, and others wait; 0: no queue. `max_wait`: seconds that a process waits for a place at most.
    """

    version: Literal[1] = 1
    uuid: str
    share: str
    closed: str = ""
    places: Count = 0
    max_wait: Seconds = 0.0
    pods: Annotated[list[GrantedPod], Meta(max_length=256)] = field(default_factory=list)


class RefusedAttach(StrEnum):
    """Why the broker refused a process."""

    NO_GRANT = "NoGrant"
    TOO_MANY_PROCESSES = "TooManyProcesses"
    TOO_MANY_CONTEXTS = "TooManyContexts"
    TOO_MANY_PROTECTED = "TooManyProtected"
    NO_PLACE = "NoPlace"
    GPU_CLOSED = "GpuClosed"
    STALLED = "AttachStalled"
    COMMAND = "ControlCommand"
    PROTOCOL = "ProtocolError"
    SERVER_HUNG = "ServerHung"
    ENDED = "ContextsEnded"
    CONNECTIONS = "TooManyConnections"
    FAILED = "AttachFailed"  # by no fault of the process
    OTHER = "Other"  # a broker of another release has a reason that this one has no word for; message has it


class Arrival(WireModel, frozen=True, kw_only=True):
    """A process that attached, at CLOCK_BOOTTIME seconds. Its container is empty where no file named it."""

    pid: int
    pod_uid: str = ""
    container: str = ""
    at: float


class AttachRefusal(WireModel, frozen=True, kw_only=True):
    """What was refused to one container for one reason. `pod_uid` is empty for a process of no pod.

    `message` and `at`, in CLOCK_BOOTTIME seconds, are of the latest one.
    """

    reason: RefusedAttach
    pod_uid: str = ""
    container: str = ""
    container_id: str = ""
    message: Note
    count: Positive
    at: float


class StoppingContainer(WireModel, frozen=True, kw_only=True):
    """A container whose preStop hook said that it is being stopped, at CLOCK_BOOTTIME seconds. `container`: by
    grants.json. `container_id`: the runtime's, which the pod's status may not show yet.
    """

    pod_uid: str
    container: str
    container_id: str
    at: float


class UnattachedClient(WireModel, frozen=True, kw_only=True):
    """A process that the MPS server lists as its client and that never attached. `started`: clock ticks since boot.

    Its pod and container by its cgroup; empty for a process of no pod.
    """

    pid: int
    started: int
    pod_uid: str = ""
    container_id: str = ""


class PlaceHolder(WireModel, frozen=True, kw_only=True):
    """A container that has a place on the GPU, since CLOCK_BOOTTIME seconds."""

    pod_uid: str
    container: str
    since: Seconds


class PlacesInUse(WireModel, frozen=True, kw_only=True):
    """`limit`: how many places the GPU has. `held`: by whom, those of longest standing first; more than `limit` where a
    share has fewer than it had, or a container took one that was not free.
    """

    limit: Count
    held: Annotated[list[PlaceHolder], Meta(max_length=MAX_PLACES)] = field(default_factory=list)


class QueuedContainer(WireModel, frozen=True, kw_only=True):
    """A container that waits for a place on the GPU, since CLOCK_BOOTTIME seconds. `position`: 1 is next."""

    pod_uid: str
    container: str
    since: Seconds
    position: Positive


class WaitBucket(WireModel, frozen=True, kw_only=True):
    """`count`: of the waits that took no longer than `seconds`."""

    seconds: Seconds
    count: Count


class WaitTimes(WireModel, frozen=True, kw_only=True):
    """The waits that ended with a place, since the first broker of this GPU: how many, and how long together.
    `buckets`: by WAIT_BUCKETS, each with all shorter ones. Who got a place at once counts as a wait of no length.
    """

    buckets: Annotated[list[WaitBucket], Meta(max_length=16)] = field(default_factory=list)
    count: Count = 0
    seconds: Seconds = 0.0


class Kernel(WireModel, frozen=True, kw_only=True):
    """The longest that a kernel of this name took, as its process has seen it. `name`: printable ASCII."""

    name: Annotated[str, Meta(max_length=55)]
    seconds: Seconds


class GaveWayTo(WireModel, frozen=True, kw_only=True):
    """How long a process gave way to a protected one, by what it says of itself, to that one's present broker."""

    pid: int
    started: int
    seconds: Seconds


class ClientActivity(WireModel, frozen=True, kw_only=True):
    """What a process with a class did, by its page: what it says of itself, as far as that can be true.

    `started`: clock ticks since boot. `last_launch`: CLOCK_BOOTTIME seconds; None: none. `active_seconds`: with work
    under way. `held_back`, `by_floor`, `on_part`, `unpaced`: launches, as native/pages.h has them. `sealed`: its busy
    page is one that it alone writes. `busy_share`: of the last minute; None: not protected, or not that long yet.
    `fault`: what in its page cannot be true; its numbers are 0 then.
    """

    pid: int
    started: int
    pod_uid: str
    container: str
    client_class: Annotated[str, Meta(max_length=16)] = field(name="class")
    launches: Count = 0
    last_launch: float | None = None
    active_seconds: Seconds = 0.0
    gave_way_seconds: Seconds = 0.0
    held_back: Count = 0
    by_floor: Count = 0
    on_part: Count = 0
    unpaced: Count = 0
    part_sms: Count = 0
    all_sms: Count = 0
    gave_way_to: Annotated[list[GaveWayTo], Meta(max_length=MAX_GAVE_WAY_TO)] = field(default_factory=list)
    longest: Annotated[list[Kernel], Meta(max_length=MAX_LONGEST)] = field(default_factory=list)
    sealed: bool = False
    busy_share: float | None = None
    fault: Note = ""


class BrokerState(WireModel, frozen=True, kw_only=True):
    """broker.json, written by the attach broker at each change and at least every 2 s.

    `heartbeat`: CLOCK_BOOTTIME seconds. `listening`: containers can attach. `problem`: why nobody can attach, also
    while it listens; empty otherwise. `restarts`: how often the broker was started again after it had ended by itself,
    since its container started; `last_end`: how it ended; `waited`: connections that waited for it meanwhile.
    `attached`, `refused`: connections, since this broker started; `abandoned`: others, whose process ended in
    mid-attach. `arrivals`: of processes that live, and of the latest ones. `refusals`, `stopping`: the latest, oldest
    first. `unattached`: whom the server lists and who never attached. `without_pages`: best-effort processes with a
    context that have attached and never asked for pages. `activity`: of processes with pages, the latest to launch.
    `places`: None: the share has no queue. `queue`: in order, as far as there is room; `waiting`: how many containers
    wait. `without_place`: whom the server lists, and whose container has no place, while none is free.
    """

    version: Literal[1] = 1
    uuid: str
    heartbeat: float
    listening: bool
    attached: Count = 0
    refused: Count = 0
    abandoned: Count = 0
    restarts: Count = 0
    last_end: Note = ""
    waited: Count = 0
    problem: str = ""
    arrivals: Annotated[list[Arrival], Meta(max_length=MAX_ARRIVALS)] = field(default_factory=list)
    refusals: Annotated[list[AttachRefusal], Meta(max_length=MAX_REFUSALS)] = field(default_factory=list)
    stopping: Annotated[list[StoppingContainer], Meta(max_length=MAX_STOPPING)] = field(default_factory=list)
    unattached: Annotated[list[UnattachedClient], Meta(max_length=MAX_UNATTACHED)] = field(default_factory=list)
    without_pages: Annotated[list[UnattachedClient], Meta(max_length=MAX_UNATTACHED)] = field(default_factory=list)
    activity: Annotated[list[ClientActivity], Meta(max_length=MAX_ACTIVE)] = field(default_factory=list)
    places: PlacesInUse | None = None
    queue: Annotated[list[QueuedContainer], Meta(max_length=MAX_QUEUED)] = field(default_factory=list)
    waiting: Count = 0
    waits: WaitTimes = field(default_factory=WaitTimes)
    without_place: Annotated[list[UnattachedClient], Meta(max_length=MAX_UNATTACHED)] = field(default_factory=list)

    @classmethod
    def known(cls, data: dict[str, Any]) -> dict[str, Any]:
        refusals = data.get("refusals")
        if not isinstance(refusals, list):
            return data
        return {
            **data,
            "refusals": [_known_reason(refusal, RefusedAttach, RefusedAttach.OTHER, 512) for refusal in refusals],
        }


class InvalidError(ValueError):
    """These bytes are not the model's. The text says what is wrong, and where."""


def is_fresh(at: float, now: float) -> bool:
    """Tells whether what was written `at`, in CLOCK_BOOTTIME seconds, is news. What comes from the future is not: it
    is of the boot before, or made up, and would be news for as long as its writer likes.
    """
    return at - AHEAD_SECONDS <= now <= at + FRESH_SECONDS


def encode(model: WireModel) -> bytes:
    return json.encode(model)


def decode(content: bytes, model: type[Model]) -> Model:
    """Raises InvalidError."""
    try:
        data = json.decode(content)
        return convert(model.known(data) if isinstance(data, dict) else data, model)
    except ValidationError as error:
        raise InvalidError(str(error)) from error
    except (DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidError(f"no JSON: {error}") from error


def _known_reason(data: Any, known: type[StrEnum], unknown: StrEnum, longest: int) -> Any:
    """`data` with the reason `unknown` in the place of one that is not `known`, which its message then tells."""
    reason = data.get("reason") if isinstance(data, dict) else None
    if not isinstance(reason, str):
        return data
    try:
        known(reason)
    except ValueError:
        return {**data, "reason": unknown.value, "message": f"{reason[:64]}: {data.get('message', '')}"[:longest]}
    return data
