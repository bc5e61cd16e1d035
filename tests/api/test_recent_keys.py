"""A key that was good a moment ago is not looked up again; one that was revoked is refused soon."""

from legato.api.keys import LIFE, MOST, RecentKeys
from legato.api.wire import Caller
from legato.domain.ids import PrincipalId


class Register:
    """Keys that are good, a clock to turn, and how often someone looked."""

    def __init__(self, *good: str) -> None:
        self.good = set(good)
        self.now = 0.0
        self.looks = 0

    async def check(self, key: str) -> Caller | None:
        self.looks += 1
        return Caller(PrincipalId(key), frozenset()) if key in self.good else None


async def test_a_revoked_key_is_refused_after_a_moment() -> None:
    """Within the life of what is remembered, and not before it was looked up again."""
    register = Register("a")
    check = RecentKeys(register.check, lambda: register.now)
    assert await check("a") == await check("a") == Caller(PrincipalId("a"), frozenset())
    assert register.looks == 1
    register.good.clear()
    register.now = LIFE
    assert await check("a") is None


async def test_a_key_that_is_revoked_here_is_refused_at_once() -> None:
    """Also where somebody asks at that very moment."""
    register = Register("a")
    check = RecentKeys(register.check, lambda: register.now)
    assert await check("a") is not None
    register.good.clear()
    check.forget()
    assert await check("a") is None

    async def slowly(key: str) -> Caller | None:
        caller = await register.check(key)
        check.forget()
        return caller

    register.good.add("a")
    check = RecentKeys(slowly, lambda: register.now)
    assert await check("a") is not None
    register.good.clear()
    assert await check("a") is None


async def test_a_key_that_is_not_known_is_looked_up_every_time() -> None:
    """One that was just made works at once."""
    register = Register()
    check = RecentKeys(register.check, lambda: register.now)
    assert await check("a") is None
    register.good.add("a")
    assert await check("a") is not None


async def test_only_so_many_are_remembered() -> None:
    """Whoever has many keys is looked up more often; memory does not grow."""
    keys = [f"key {n}" for n in range(MOST + 1)]
    register = Register(*keys)
    check = RecentKeys(register.check, lambda: register.now)
    for key in keys:
        assert await check(key) is not None
    await check(keys[-1])
    assert register.looks == len(keys)
    await check(keys[0])
    assert register.looks == len(keys) + 1
