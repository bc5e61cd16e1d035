"""What goes wrong, done to the fleet as the plan says: at any moment, or at a point that a client reaches."""

import threading
import time
from collections.abc import Iterator
from contextlib import suppress

from msgspec import Struct

from legato.cli.prove.fleet import Fleet, Node
from legato.cli.prove.plan import Fault, Point
from legato.errors import LegatoError

AIMING = 4.0  # seconds that a point gets to be reached


class Done(Struct, frozen=True):
    """A fault that happened."""

    kind: str
    point: str
    ready: float
    """Seconds until every node that it hit was ready again."""


class Faults:
    """Carries out the plan in a thread of its own."""

    def __init__(self, fleet: Fleet, plan: Iterator[Fault], lease: float, stopping: threading.Event) -> None:
        self._fleet, self._plan, self._lease, self._stopping = fleet, plan, lease, stopping
        self.done: list[Done] = []
        self.error: LegatoError | None = None
        self._aim = threading.Condition()
        self._wanted: Point | None = None
        self._hit: tuple[Node, float] | None = None

    # -- what clients call

    def wants(self, point: Point) -> bool:
        return self._wanted == point

    def reached(self, point: Point, node: Node | None) -> None:
        """A client is at this point, with this node: if the plan waits for that, the node is killed here and now."""
        if self._wanted != point or node is None:
            return
        with self._aim:
            if self._wanted == point:
                self._wanted = None
                self._hit = node, time.monotonic()
                with node.lock:
                    node.kill()
                self._aim.notify_all()

    # -- the plan

    def run(self) -> None:
        """One fault after the other, until told to stop."""
        try:
            for fault in self._plan:
                if self._stopping.wait(fault.after):
                    return
                self._do(fault)
        except LegatoError as error:  # a node that does not come back: the drill ends, and says so
            self.error = error
            self._stopping.set()

    def _do(self, fault: Fault) -> None:
        node = self._fleet.nodes[fault.node]
        begun = time.monotonic()
        point: str = fault.point
        match fault.kind:
            case "kill":
                hit = self._aimed(fault.point)
                if hit is None:
                    point = "at any moment"
                    begun = time.monotonic()
                    self._end(node)
                else:
                    node, begun = hit
                self._start(node)
            case "stop":
                with node.lock:
                    node.stop(self._lease + 1.0)
                begun = time.monotonic()
                node.wait_until_ready()
            case "jump":
                with node.lock:
                    node.jump()
                node.wait_until_ready()
            case "drain":
                with node.lock:
                    node.drain()
                begun = time.monotonic()
                self._start(node)
            case "kill all":
                for one in self._fleet.nodes:
                    self._end(one)
                for one in self._fleet.nodes:
                    self._start(one)
        self.done.append(Done(fault.kind, point, time.monotonic() - begun))

    def _aimed(self, point: Point) -> tuple[Node, float] | None:
        """Wait for a client to reach the point; what was hit there, and when."""
        if point == "at any moment":
            return None
        with self._aim:
            self._wanted, self._hit = point, None
            self._aim.wait_for(lambda: self._hit is not None, AIMING)
            self._wanted = None
            return self._hit

    def _end(self, node: Node) -> None:
        with node.lock:
            node.kill()

    def _start(self, node: Node) -> None:
        with node.lock:
            node.start()
        node.wait_until_ready()


def revive(fleet: Fleet) -> None:
    """Let every node live, whatever the plan was doing."""
    for node in fleet.nodes:
        with node.lock, suppress(ProcessLookupError):
            if not node.pid:
                node.start()
        node.wait_until_ready()
