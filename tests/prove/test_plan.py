"""The plan is a function of the seed."""

from itertools import islice

from legato.cli.prove.plan import WAYS, acts, faults


def test_the_same_seed_gives_the_same_plan() -> None:
    """Requests and faults alike; another seed gives another plan."""
    assert list(islice(acts(7, 3), 200)) == list(islice(acts(7, 3), 200))
    assert list(islice(faults(7, 2), 200)) == list(islice(faults(7, 2), 200))
    assert list(islice(acts(7, 3), 20)) != list(islice(acts(8, 3), 20))
    assert list(islice(acts(7, 3), 20)) != list(islice(acts(7, 4), 20))
    assert list(islice(faults(7, 2), 20)) != list(islice(faults(8, 2), 20))


def test_a_plan_tries_everything() -> None:
    """Every way, every fault and every point is in it before long, and no key twice."""
    planned = list(islice(acts(1, 0), 300))
    assert {act.way for act in planned} == set(WAYS)
    assert len({act.key for act in planned}) == 300
    assert any(act.twice for act in planned)
    assert any(act.gives_up for act in planned)
    assert {act.aside for act in planned} == {"compact", "read", "resend", None}
    wrong = list(islice(faults(1, 2), 200))
    assert {fault.kind for fault in wrong} == {"kill", "stop", "drain", "jump", "kill all"}
    assert len({fault.point for fault in wrong}) == 4
    assert {fault.node for fault in wrong} == {0, 1}
