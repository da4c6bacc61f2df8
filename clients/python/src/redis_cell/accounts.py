"""Units that a block holds: taken before its work, settled after it, and given back if their owner crashes."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from . import steps, wire
from .answers import Answer, Balance, Key, Together
from .contexts import AsyncContext, SyncContext
from .limiters import Lease, Log, function, of_kind, whole
from .steps import Method, Steps
from .times import Seconds, micros
from .waiting import AsyncRuns, Runs, check_runs
from .wire import Else, Once, Pools, Spill, Take

T = TypeVar("T")
Q = TypeVar("Q")
QuantityOf = TypeVar("QuantityOf", contravariant=True)

_log = logging.getLogger("redis_cell")

RENEWALS = 3
"""How often a hold is renewed in its period while a stream lasts."""
USED = 1_000_000
"""The largest usage that a call can settle with a log."""
KEPT = 60.0
"""How long the reply to a settlement is kept at least, in seconds, so that the settlement can be sent again."""

PoolsOf: TypeAlias = Callable[[int], "Pools | tuple[Pools, ...]"]
"""Returns what gives a quantity: a limiter, a chain, or several of them."""


class Gives(Protocol[QuantityOf]):
    """An object that provides units to hold."""

    holds: Key
    period: Seconds

    @property
    def runs(self) -> Any:
        """The cell or the guard."""
        ...

    def of(self, quantity: QuantityOf, /) -> tuple[Pools, ...]:
        """Returns the limiters and chains that give a quantity."""
        ...


def empty(take: Take) -> Take:
    """Returns a limiter with a quantity of 0."""
    return take if isinstance(take.limit, Lease) else replace(take, quantity=0)


def _changed(chain: Pools, change: Callable[[Take], Take]) -> Pools:
    """Returns a chain with each of its limiters changed."""
    if isinstance(chain, Else):
        pools = (Spill(*map(change, pool.takes)) if isinstance(pool, Spill) else change(pool) for pool in chain.pools)
        return Else(*pools)
    return Spill(*map(change, chain.takes)) if isinstance(chain, Spill) else change(chain)


class Block(Generic[Q]):
    """The common part of all holds."""

    def __init__(self, account: Gives[Q], quantity: Q, owner: str | bytes | None) -> None:
        self.quantity: Q = quantity
        """The units that the block has asked for."""
        self.settled: Together[Balance] | None = None
        """The answer to the settlement, when the block has ended."""
        self._account = account
        self._hold = wire.Hold(account.holds, secrets.token_hex(8) if owner is None else owner, account.period)
        self._seconds = micros(account.period, "period") / 1_000_000
        self._token = secrets.token_hex(8).encode()
        self._again = 0.0
        self._adding = threading.Lock()

    _is_entered = _has_ended = False
    refusal: Together[Answer] | None = None
    """The answer to the last call for units, if it was refused."""
    answer: Together[Answer]
    """The answer to the call that took the units; `answer.taken(key)` is what a pool gave."""

    def _spent(self, failed: bool) -> Q:
        """Returns what to settle."""
        raise NotImplementedError

    def _of(self, quantity: Q) -> tuple[Pools, ...]:
        return self._account.of(quantity)

    def _settled(self, quantity: Q) -> tuple[Pools, ...]:
        """Returns the settlement of a used quantity."""
        return self._of(quantity)

    def _run(self, call: wire.Call[T]) -> Steps[T]:
        answer: T = yield partial(self._account.runs.run, call)
        return answer

    def _take(self, pools: tuple[Pools, ...]) -> Steps[Together[Answer]]:
        self._again = time.monotonic() + self._seconds / RENEWALS
        answer = yield from self._run(wire.mtake(*pools, hold=self._hold))
        self.refusal = None if answer else answer
        return answer.or_raise()

    def _enter(self) -> Steps[None]:
        if self._is_entered:
            raise RuntimeError("a hold is for one block, whose settlement ends it: make another one for another block")
        self._is_entered = True
        self.answer = yield from self._take(self._of(self.quantity))

    @Method
    def renew(self) -> Steps[None]:
        """Restarts the period of the hold. Changes nothing if the hold has run out."""
        self._again = time.monotonic() + self._seconds / RENEWALS
        # Quantities of 0 renew what is held.
        renewals = [_changed(chain, empty) for chain in self._of(self.quantity)]
        yield from self._run(wire.mtake(*renewals, hold=self._hold))

    def _check_open(self) -> None:
        if self._has_ended:
            raise RuntimeError("the block of this hold has ended: what is used after it would not be charged")

    def _not_renewed(self, error: Exception) -> None:
        why = str(error) or type(error).__name__
        _log.warning("a hold of %r was not renewed, and may run out before its block ends: %s", self._hold.key, why)

    def _settle(self, failed: bool) -> Steps[None]:
        self._has_ended = True
        key = self._hold.key.encode() if isinstance(self._hold.key, str) else self._hold.key
        # A settlement that arrives twice would charge the usage twice. An owner may have several settlements, one after
        # the other.
        once = Once(key + b":" + self._token, max(KEPT, self._seconds))
        used = self._settled(self._spent(failed))
        self.settled = yield from self._run(wire.settle(*used, hold=self._hold, once=once))

    def _not_settled(self, failed: bool, error: BaseException) -> None:
        if self.settled is not None:
            _log.warning("a hold of %r was settled, but its warnings failed", self._hold.key, exc_info=error)
            return
        why = str(error) or type(error).__name__
        _log.warning("a hold of %r runs out, and %s was not charged: %s", self._hold.key, self._spent(failed), why)


class SyncBlock(Block[Q], SyncContext):
    """The common part of holds in `with` blocks."""

    def over(self, stream: Iterable[T]) -> Iterator[T]:
        """Returns the items of a stream, and meanwhile renews the hold three times in its period.

        If the stream pauses or the server is unavailable for longer than the period, the hold runs out, and the
        settlement is still exact. The logger warns of each renewal that fails.
        """
        for item in stream:
            if time.monotonic() >= self._again:
                try:
                    self.renew()
                except Exception as error:
                    self._not_renewed(error)
            yield item


class AsyncBlock(Block[Q], AsyncContext):
    """The common part of holds in `async with` blocks."""

    async def over(self, stream: AsyncIterable[T]) -> AsyncIterator[T]:
        """Returns the items of a stream, and renews the hold while they come, like `Held.over`."""
        async for item in stream:
            if time.monotonic() >= self._again:
                try:
                    await self.renew()
                except Exception as error:
                    self._not_renewed(error)
            yield item


class _Units(Block[int]):
    """The common part of Held and AsyncHeld."""

    _used: int | None = None
    _gave: frozenset[Key] = frozenset()
    """The keys that have given units."""

    def used(self, quantity: int) -> None:
        """Adds to the usage. It is charged when the block ends, so this method sends nothing.

        A block that adds nothing is charged all units that it holds. If an exception ends it, it is charged only the
        added usage, so a failed request costs nothing. Raises an error if the quantity is below 0, or after the block.
        """
        used = whole(quantity, "quantity")
        self._check_open()
        with self._adding:
            self._used = (self._used or 0) + used

    def _spent(self, failed: bool) -> int:
        return self._used if self._used is not None else 0 if failed else self.quantity

    def _settled(self, quantity: int) -> tuple[Pools, ...]:
        # The server would refuse a larger quantity, and then charge nothing.
        most = dict[Key, int]()
        for chain in self._of(self.quantity):
            for pool in wire.pools_of(chain):
                bounds = [USED if isinstance(take.limit, Log) else wire.most(take.limit) for take in pool]
                if isinstance(pool[-1].limit, Log):  # which is charged what does not fit the others
                    bounds.append(pool[0].quantity + wire.MOST_LOGGED)
                most |= dict.fromkeys((take.key for take in pool), min(bounds))

        def limited(take: Take) -> Take:
            return replace(take, quantity=min(take.quantity, most.get(take.key, take.quantity)))

        return tuple(_changed(chain, limited) for chain in self._of(quantity))

    def _take(self, pools: tuple[Pools, ...]) -> Steps[Together[Answer]]:
        answer = yield from super()._take(pools)
        self._gave |= {key for key in answer if answer.taken(key)}
        return answer

    @Method
    def more(self, quantity: int) -> Steps[None]:
        """Takes more units under the same hold, of an `Else` from the same pool. Raises RateLimited if there are too
        few, and keeps its units."""
        self._check_open()
        yield from self._take(tuple(map(self._same, self._of(quantity))))
        self.quantity += quantity

    def _same(self, chain: Pools) -> Pools:
        """Returns the pool that has given units: a settlement charges each pool that has given some for the whole
        usage."""
        pools = chain.pools if isinstance(chain, Else) else ()
        gave = (pool for pool in pools if not self._gave.isdisjoint(take.key for take in wire.takes_of((pool,))))
        return next(gave, chain)


class Held(_Units, SyncBlock[int]):
    """Units that a `with` block holds. It raises RateLimited if the account does not have them."""


class AsyncHeld(_Units, AsyncBlock[int]):
    """Units that an `async with` block holds, like Held."""


class _Account:
    """The common part of Account and AsyncAccount."""

    def __init__(self, cell: Runs | AsyncRuns, pools: PoolsOf, *, holds: Key, period: Seconds = 60) -> None:
        check_runs(cell, type(self).__name__, awaited=isinstance(self, AsyncAccount))
        function(pools, "pools")
        of_kind(holds, "holds", str, bytes)
        micros(period, "period", least=1)
        self.runs: Any = cell
        self.holds, self.period = holds, period
        self._pools = pools

    def of(self, quantity: int, /) -> tuple[Pools, ...]:
        """Returns the limiters and chains that give a quantity."""
        pools = self._pools(whole(quantity, "quantity"))
        chains = pools if isinstance(pools, tuple) else (pools,)
        if not chains:
            raise ValueError("pools must return at least one limiter")
        return chains

    @Method
    def peek(self, quantity: int = 0) -> Steps[Together[Answer]]:
        """Returns the answer that a call of `hold` would get now, and takes nothing. Units of holds that have run out
        count as given back."""
        answer: Together[Answer] = yield partial(self.runs.run, wire.mpeek(*self.of(quantity), holds=self.holds))
        return answer


class Account(_Account, steps.Blocking):
    """Pools of units in order, of which blocks hold units: for example included units, then bought units, then money.

    `pools` returns the limiters for a quantity: a `Take`, a `Spill`, an `Else`, or a tuple of them, from which a call
    takes all or nothing. `holds` is the key of the holds, in a cluster with the hash tag of the pools. A hold lasts for
    `period` unless it is renewed; the usage is charged exactly, also later. With a Guard, its choice decides while the
    server is unavailable; usage that is settled then is not charged in the server, where the hold runs out.

    A block costs two calls: CL.MTAKE before it, and CL.MSETTLE after it, which may be sent again. If the settlement
    fails, the logger warns.

    >>> account = Account(cell, lambda tokens: Take("{o7}:month", Fixed.per_month(9000), tokens), holds="{o7}:holds")
    >>> with account.hold(1200) as hold:
    ...     hold.used(874)
    """

    def hold(self, quantity: int, *, owner: str | bytes | None = None) -> Held:
        """Returns a context manager that holds units. `owner` is a unique name, by default a random one."""
        return Held(self, quantity, owner)


class AsyncAccount(_Account, steps.Asyncio):
    """An Account for asyncio. A block that is cancelled settles what it has used."""

    def hold(self, quantity: int, *, owner: str | bytes | None = None) -> AsyncHeld:
        """Returns a context manager that holds units. `owner` is a unique name, by default a random one."""
        return AsyncHeld(self, quantity, owner)
