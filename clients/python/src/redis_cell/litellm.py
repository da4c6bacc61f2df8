"""Limits for the LiteLLM proxy that all its processes share.

    limits = {"key": Limits(requests_per_minute=60)}
    limiter = Limiter("redis://localhost:6379", when_unavailable=FailOpen(), limits=limits)

Write this in `rules.py` beside the proxy's configuration, which names it:
`litellm_settings: {callbacks: rules.limiter}`. One call of CL.MTAKE takes from all limits of a request, and holds an
estimate of its tokens and price, before the request goes to the upstream. Then one call of CL.MSETTLE settles the usage
and releases the places. The held units of a crashed process come back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import secrets
import sys
import time
from collections.abc import Awaitable, Callable, Container, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import partial, wraps
from typing import Any, Literal, TypeAlias, cast, get_args

import litellm
import redis.asyncio
from fastapi import HTTPException
from litellm.integrations.custom_logger import CustomLogger
from litellm.llms.custom_httpx.http_handler import AsyncHTTPHandler
from openai import AsyncOpenAI

from . import wire
from .accounts import KEPT
from .agents import Estimate, estimate
from .answers import Admitted, Answer, Refused, RefusedForever, Together
from .budgets import micro_dollars
from .client import AsyncCell, check_url
from .httpx import GATE, LONGEST_PAUSE, PAUSE, retry_after
from .limiters import Fixed, Lease, Limit, Log, Rate, function, of_kind, short, whole
from .steps import Tasks
from .times import Seconds, micros
from .unavailable import AsyncGuard, WhenUnavailable, check_choice
from .waiting import async_answer
from .wire import MOST_WEIGHT, Else, Hold, Once, Pools, Release, Renew, Take

_log = logging.getLogger("redis_cell")

Scope: TypeAlias = Literal["model", "key", "user", "team", "organisation", "member", "end_user", "tag"]
"""Who or what a limit applies to."""
SCOPES = get_args(Scope)
Unit: TypeAlias = Literal["requests", "tokens", "micro-dollars", "calls at once", "pause"]
"""The unit that a limit counts."""
MICRO = 1_000_000
COUNTED = ("tokens", "micro-dollars")
"""The units that are held and settled."""
METADATA = "redis_cell"
"""The name under which the metadata of a key, a team or an organisation has its limits."""
SETTLED = 10.0
"""How long after the end of a request LiteLLM may still report its usage, in seconds."""
RESPONSES = ("responses", "aresponses", "acompact_responses")
"""The APIs whose requests name their text like those of embeddings."""
STORED = ("aget_responses", "adelete_responses", "acancel_responses")
"""The APIs whose answers have the usage of an earlier request."""
BATCHES = 30 * 86_400.0
"""How long a batch that was charged is remembered, in seconds."""
MOST_TAGS = 100
"""The most tags of a request that have limits. Each tag adds limiters to one call of the server."""
TIMEOUT = 5.0
"""The timeout for a connection and for a reply, in seconds. A busy proxy reads its replies late. For as long again, a
late reply is awaited, to give back what it has taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a model, a key, a user, a team, an organisation, a member of a team, an end user or a tag.

    None means no limit. Requests per minute are exact: no minute has more. Tokens per minute are a rate: this number
    can be used at once, and then this number per minute. Months are calendar months in UTC. `otherwise` is the name of
    a model: if this model's month is used up, requests go to that one, if its own month admits them.
    """

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    tokens_per_month: int | None = None
    dollars_per_month: Decimal | str | float | None = None
    calls_at_once: int | None = None
    otherwise: str | None = None

    def __post_init__(self) -> None:
        for name, limiter in _LIMITERS.items():
            if (value := getattr(self, name)) is None:
                continue
            if name != "dollars_per_month" and (not isinstance(value, int) or isinstance(value, bool)):
                raise TypeError(f"{name} must be a whole number, not {value!r}")
            try:
                limiter(value)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
        if self.otherwise is not None and not (isinstance(self.otherwise, str) and self._are_a_month()):
            raise ValueError(f"otherwise must be a model, beside one limit of a month, not {self.otherwise!r}")

    def _are_a_month(self) -> bool:
        """Returns whether these are one limit, of a month."""
        given = [name for name in _LIMITERS if getattr(self, name) is not None]
        return given in (["tokens_per_month"], ["dollars_per_month"])

    @classmethod
    def of(cls, mapping: Mapping[str, Any]) -> Limits:
        """Returns the limits in a mapping, as in the metadata of a key. Raises ValueError for an unknown name."""
        if not isinstance(mapping, Mapping):
            raise TypeError(f"limits must be a mapping, not {mapping!r}")
        if unknown := set(mapping) - set(_LIMITERS):  # `otherwise` is for models
            what, names = ", ".join(sorted(map(repr, unknown))), ", ".join(_LIMITERS)
            raise ValueError(f"no limit is called {what}: they are {names}")
        return cls(**mapping)


_LIMITERS: Mapping[str, Callable[..., Limit]] = {
    "dollars_per_month": lambda dollars: Fixed.per_month(micro_dollars(dollars, "dollars_per_month", least=1)),
    "requests_per_minute": partial(Log, per=60),
    "tokens_per_minute": Rate.per_minute,
    "tokens_per_month": Fixed.per_month,
    "calls_at_once": partial(Lease, lease=60, holder=""),
}


def _check_limits(limits: object) -> None:
    """Raises an error that names a mistake in the limits of a Limiter."""
    if not isinstance(limits, Mapping):
        raise TypeError(f"limits must map scopes to limits, not {limits!r}")
    for scope, given in cast(Mapping[object, object], limits).items():
        _check_scope(scope, "limits")
        names = cast(Mapping[object, object], given) if isinstance(given, Mapping) else {"*": given}
        for name, each in names.items():
            if not isinstance(name, str) or not isinstance(each, Limits):
                raise TypeError(f"limits[{scope!r}] must be Limits(...), or map names to them, not {given!r}")
            if each.otherwise is not None:
                _check_otherwise(str(scope), name, cast(Mapping[str, Limits], names))


def _check_otherwise(scope: str, name: str, limits: Mapping[str, Limits]) -> None:
    """Raises an error that names a mistake in the models that follow a model."""
    if scope != "model" or name == "*":
        raise ValueError(f"otherwise is for the limits of a model with a name, not of {scope} {name!r}")
    seen = [name]
    while (other := limits[seen[-1]].otherwise) is not None:
        if other in seen or other not in limits or not limits[other]._are_a_month():
            raise ValueError(f"otherwise={other!r} must name another model that has one limit, of a month")
        seen.append(other)


def _check_scope(scope: object, name: str) -> None:
    if scope not in SCOPES:
        raise ValueError(f"{name}: no scope is called {scope!r}: they are {', '.join(SCOPES)}")


def price_of(model: str, tokens: Estimate) -> float:
    """Returns the price of an estimate in dollars, from LiteLLM's prices for the model. 0 if it has none."""
    for known in (lambda: _router().get_model_group_info(model), lambda: litellm.get_model_info(model)):
        with contextlib.suppress(Exception):
            info: dict[str, Any] = dict(known())
            prices = (info.get("input_cost_per_token") or 0, info.get("output_cost_per_token") or 0)
            if any(prices):
                return tokens.prompt * prices[0] + tokens.answer * prices[1]
    return 0


@dataclass(slots=True)
class Part:
    """One limit of a request."""

    scope: str
    unit: Unit
    take: Take
    unused: bool = False
    """Whether the request has gone to another model than this limit's."""


@dataclass(slots=True)
class Taken:
    """The units that one call has taken from limits, under a hold of its own."""

    parts: list[Part]
    hold: Hold
    answer: Together[Answer] | None = None
    model: str | None = None
    """The model whose limits these are, of one of several upstream requests."""
    reported: bool = False

    @property
    def by_server(self) -> bool:
        return self.answer is not None and self.answer.sent is not None

    def leases(self) -> list[tuple[str, Lease]]:
        """Returns the places that the request has, with their keys."""
        own = [part.take for part in self.parts if not part.unused]
        return [(str(take.key), take.limit) for take in own if isinstance(take.limit, Lease)]

    def held(self) -> list[Take]:
        """Returns the units of the hold."""
        return [part.take for part in self.parts if part.unit in COUNTED and part.take.quantity]

    def used(self, tokens: int | None, micros: int | None) -> list[Take]:
        """Returns the usage of each limit by the request. With None, an estimate does not change."""
        used, takes = {"tokens": tokens, "micro-dollars": micros}, list[Take]()
        for part in self.parts:
            take, actual = part.take, 0 if part.unused else used.get(part.unit)
            if part.unit in COUNTED and actual is not None:
                # The server would refuse a larger quantity, and then charge nothing.
                take = replace(take, quantity=min(actual, wire.most(take.limit)))
            if part.unit in COUNTED or (isinstance(take.limit, Lease) and not part.unused):
                takes.append(take)
        return takes


@dataclass(slots=True)
class Admission:
    """The units that a request has taken and not yet settled."""

    taken: list[Taken]
    """The first is what the request took before it was sent. Those of upstream requests follow."""
    flow: str | None
    call_id: object
    model: str | None
    """The model whose limits the request has taken. None if the router has not yet chosen a deployment."""
    estimated: Estimate
    """The estimate of one upstream request."""
    several: bool = False
    """Whether the request names several models, so that the router calls all of them."""
    attempts: int = 0
    refused: bool = False
    """Whether the limits of the model have refused the last attempt."""
    api: object = None
    """The API of the request, which LiteLLM may translate to another one for the upstream."""
    chain: list[tuple[str, Part]] = field(default_factory=list[tuple[str, Part]])
    """The models that may take the place of the model, whose month is the last part, with their parts."""
    tokens: int = 0
    price: int = 0
    """The reported usage of several upstream requests."""
    settled: bool = False
    done: asyncio.Event = field(default_factory=asyncio.Event)
    own: dict[object, Admission] = field(default_factory=dict[object, "Admission"])
    """Upstream requests that LiteLLM adds of its own accord, by their ids."""
    is_own: bool = False
    """Whether this is such a request."""
    outer: Admission | None = None
    """The request that waits for this one, for example for a tool."""
    origin: tuple[object, object] | None = None
    """The task and the API of the request, which its fallbacks have too."""

    @property
    def parts(self) -> list[Part]:
        return self.taken[0].parts

    def rows(self) -> list[tuple[Part, Answer]]:
        """Returns the answers for the limits of the request, without those of a model that it has left."""
        return [
            (part, taken.answer[part.take.key])
            for taken in self.taken
            if taken.answer is not None and taken.model is None
            for part in taken.parts
            if not part.unused
        ]

    def pools(self) -> list[Pools]:
        """Returns the limits and the chain of models from which the request takes."""
        pools: list[Pools] = [part.take for part in self.parts]
        if self.chain:
            pools[-1] = Else(self.parts[-1].take, *(part.take for _, part in self.chain))
        return pools

    def choose(self, answer: Together[Answer]) -> str | None:
        """Keeps the part of the model that the chain has chosen, and returns this model if it is another one."""
        if self.chain and not isinstance(answer[self.parts[-1].take.key], Admitted):
            for model, part in self.chain:
                if isinstance(answer[part.take.key], Admitted):
                    self.parts[-1], self.model = part, model
                    return model
        return None


_admission: ContextVar[Admission | None] = ContextVar("redis_cell_admission", default=None)


@dataclass(slots=True)
class Upstream:
    """A call of a deployment, whose request LiteLLM or an SDK may send several times without a call of a hook."""

    call_id: object
    again: Callable[[], Awaitable[None]] | None
    """Takes from the limits of the model for another request. None if there are no limits."""
    outer: Upstream | None
    """The call that waits for this one, for example for the embedding of its text."""
    sent: bool = False


_upstream: ContextVar[Upstream | None] = ContextVar("redis_cell_upstream", default=None)


def _counted(kind: Any, name: str, is_upstream: Callable[[Mapping[str, Any]], bool] = lambda _: True) -> None:
    """Counts each call of a method that sends a request, except the first one of a call, for which the hook has taken.

    LiteLLM has no hook for requests: SDKs try again after errors, embeddings and images whatever their `max_retries`,
    and LiteLLM's own client sends a request again on a new connection.
    """
    method = getattr(kind, name)

    @wraps(method)
    async def counted(self: Any, *arguments: Any, **options: Any) -> Any:
        token = None if is_upstream(options) else _upstream.set(None)
        try:
            if (upstream := _upstream.get()) is not None:
                if upstream.sent and upstream.again is not None:
                    await upstream.again()
                upstream.sent = True
            return await method(self, *arguments, **options)
        finally:
            if token is not None:
                _upstream.reset(token)

    setattr(kind, name, counted)


_counted(AsyncOpenAI, "_prepare_request")
_counted(AsyncHTTPHandler, "post", lambda options: options.get("logging_obj") is not None)  # the others are of logs
_counted(AsyncHTTPHandler, "single_connection_post_request")


def _router() -> Any:
    from litellm.proxy import proxy_server

    return proxy_server.llm_router


def _public_name(deployment: Any) -> str | None:
    """Returns the name under which a deployment is called and has limits."""
    info = deployment.get("model_info") or {}
    return cast("str | None", info.get("team_public_model_name") or deployment.get("model_name"))


def _check_models(limits: Mapping[Any, Any], deployments: list[Any], others: Container[str] = ()) -> None:
    """Raises an error that names the models with limits that are neither those of a deployment nor among the others."""
    given, names = limits.get("model"), {str(_public_name(each)) for each in deployments}
    unknown = [name for name in (given if isinstance(given, Mapping) else ()) if name not in {"*", *names}]
    if unknown := [name for name in unknown if name not in others]:
        what, known = (", ".join(sorted(map(repr, each))) for each in (unknown, names))
        raise ValueError(f"limits['model']: no deployment is called {what}. Deployments are called {known}")


def _check_configuration(limits: Mapping[Any, Any]) -> None:
    """Checks the models of limits by the configuration that the proxy is loading, unless it may get others later."""
    config = getattr(getattr(sys.modules.get("litellm.proxy.proxy_server"), "proxy_config", None), "config", {})
    settings = config.get("general_settings") or {}
    later = [settings.get(name) for name in ("database_url", "store_model_in_db", "allow_client_side_credentials")]
    if config.get("model_list") and not any([*later, *map(os.environ.get, ("DATABASE_URL", "STORE_MODEL_IN_DB"))]):
        # Batches and pass-through endpoints call models without a deployment, by the names that LiteLLM knows.
        _check_models(limits, config["model_list"], litellm.model_cost)


def _configured(deployment_id: object) -> str | None:
    """Returns the name under which the proxy's configuration has a deployment. None if there is no such deployment."""
    with contextlib.suppress(Exception):
        return _public_name(_router().get_deployment(model_id=deployment_id))
    return None


def _model_of(name: str) -> str | None:
    """Returns the model whose deployments the router calls for a name: an id, an alias, what a wildcard matches.

    None if that depends on the choice of the router.
    """
    if (model := _configured(name)) is not None:
        return model
    found: set[str | None] = set()
    with contextlib.suppress(Exception):
        found = {_configured(each["model_info"]["id"]) for each in _router().get_model_list(model_name=name) or ()}
    return name if not found else found.pop() if len(found) == 1 else None


def _metadata(kwargs: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Returns where LiteLLM says which deployment the router calls."""
    inner = [kwargs.get("litellm_params"), kwargs.get("litellm_metadata"), kwargs.get("metadata")]
    return [given for given in (kwargs, *inner) if isinstance(given, Mapping)]


def _is_of_caller(kwargs: Mapping[str, Any]) -> bool:
    """Returns whether the caller has given the credentials or the deployment."""
    infos = (given.get("model_info") for given in _metadata(kwargs))
    return not any(_configured(info.get("id")) for info in infos if isinstance(info, Mapping))


def _called(kwargs: Mapping[str, Any]) -> str | None:
    """Returns the model of the deployment that the router calls."""
    # The ids first: the upstream requests for a list of models share their metadata.
    metadata = _metadata(kwargs)
    for given in metadata:
        info = given.get("model_info")
        # With credentials of the caller, a deployment has another id.
        for name in ("id", "original_model_id") if isinstance(info, Mapping) else ():
            if (model := _configured(info.get(name))) is not None:
                return _model_of(model) or model
    # Deployments in the `user_config` of a request are not in the proxy's configuration.
    names = [given.get(name) for name in ("deployment_model_name", "model_group") for given in metadata]
    return next((_model_of(name) or name for name in names if isinstance(name, str)), None)


def _names(data: Mapping[str, Any]) -> list[str]:
    """Returns the name of a model for each upstream request of a request, which may list several."""
    name = str(data.get("model") or "")
    if "," not in name or "messages" not in data:
        return [name]
    messages = data["messages"]
    each = len(messages) if isinstance(messages, list) and messages and isinstance(messages[0], list) else 1
    return [part.strip() for part in name.split(",")] * each


def _call_id(kwargs: Mapping[str, Any]) -> object:
    return kwargs.get("litellm_call_id")


class Limiter(CustomLogger):
    """The limits of a proxy, as one of its callbacks.

    `url` is the URL of the server, or a function that returns a client of redis.asyncio. `when_unavailable` is the
    choice for when the server is unavailable. `limits` has, for each scope, limits for every name, or a mapping from
    names to limits, with "*" for all others. A name is the name of a model, the hash of a key, or the id of a user, a
    team or an organisation. Limits in the metadata of a key, a team or an organisation, under `redis_cell`, take
    precedence.

    A request that cannot be admitted immediately waits up to `max_wait` seconds, fairly among the names of the scope
    `flow`, by their `weights`. Places and holds last for the time `lease` and are renewed while the request runs, so
    they come back if a process crashes.
    """

    def __init__(
        self,
        url: str | Callable[[], Any],
        *,
        when_unavailable: WhenUnavailable,
        limits: Mapping[Scope, Limits | Mapping[str, Limits]],
        max_wait: Seconds = 0,
        flow: Scope = "team",
        weights: Mapping[str, int] | None = None,
        lease: Seconds = 60,
        prefix: str = "litellm",
        estimate: Callable[[Mapping[str, Any]], Estimate] = estimate,
        timeout: Seconds = TIMEOUT,
    ) -> None:
        super().__init__()
        check_choice(when_unavailable)
        _check_limits(limits)
        _check_configuration(limits)
        _check_scope(flow, "flow")
        longest = 2 * max(TIMEOUT, micros(timeout, "timeout", least=1) / MICRO)
        if isinstance(url, str):
            check_url(url, "redis", "rediss", "unix")
            options: Any = {"socket_timeout": longest, "socket_connect_timeout": TIMEOUT, "max_connections": 400}
            url = partial(redis.asyncio.Redis.from_url, url, **options)
        elif not callable(url):
            raise TypeError(f"url must be a URL, or a function that returns a client, not {url!r}")
        if not isinstance(prefix, str) or not prefix or "{" in prefix or "}" in prefix:
            raise ValueError(f"prefix must be a name without braces, not {prefix!r}")
        for name, weight in of_kind({} if weights is None else weights, "weights", Mapping).items():
            whole(weight, f"the weight of {name!r}", 1, MOST_WEIGHT)
        function(estimate, "estimate")
        self.when_unavailable, self.limits, self.flow = when_unavailable, limits, flow
        self.connect, self.weights = url, weights or {}
        self.max_wait = micros(max_wait, "max_wait") / MICRO
        self.lease = micros(lease, "lease", least=1) / MICRO
        self.prefix, self.estimate, self.timeout = prefix, estimate, timeout
        self._guard: AsyncGuard | None = None
        self._is_checked = False
        self._tasks = Tasks()

    @property
    def guard(self) -> AsyncGuard:
        """The guard of the server, made by the event loop that uses it."""
        if self._guard is None:
            cell = AsyncCell(self.connect())
            self._guard = AsyncGuard(cell, when_unavailable=self.when_unavailable, timeout=self.timeout)
        return self._guard

    # Before the call.

    async def async_pre_call_hook(self, user_api_key_dict: Any, cache: Any, data: Any, call_type: Any) -> Any:
        """Takes from all limits, or raises an exception with status 429, 413 or 503."""
        if not self._is_checked and (router := _router()) is not None:
            self._is_checked = True
            try:
                _check_models(self.limits, router.model_list)
            except ValueError as error:
                _log.error("%s", error)
        admission = self._admission_of(user_api_key_dict, data, call_type)
        admission.origin = (asyncio.current_task(), call_type)
        refused = _admission.get()
        if refused is not None and refused.origin == admission.origin and not refused.attempts:
            # Another callback has refused the request, and LiteLLM continues with a fallback. If that is refused too,
            # LiteLLM names the first request.
            admission.own = dict.fromkeys((*refused.own, refused.call_id), admission)
            await self._settle(refused, 0, 0)
        if admission.parts:
            answer = await self._take(admission.taken[0], admission.pools(), admission.flow)
            if not answer:
                raise self._refusal(admission)
            if (model := admission.choose(answer)) is not None:
                data["model"] = model
        elif not self.limits.get("model"):
            return None
        admission.outer = _admission.get()
        while admission.outer is not None and admission.outer.settled:
            admission.outer = admission.outer.outer
        _admission.set(admission)
        self._tasks.start(self._watch(admission, asyncio.current_task()))
        return data

    async def _take(self, taken: Taken, pools: list[Pools], flow: str | None) -> Together[Answer]:
        """Takes from limits. If this is cancelled, the units are given back, because the call may be admitted."""
        asking = self._tasks.start(self._ask(taken, pools, flow))

        def give_back(asked: asyncio.Task[Together[Answer]]) -> None:
            if not asked.cancelled() and asked.exception() is None and asked.result():
                self._tasks.start(self._settle_taken(taken, flow, 0, 0))

        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            asking.add_done_callback(give_back)
            raise
        except Exception as error:  # its text can name keys and limits, which are not for clients of the proxy
            _log.error("the rate limiter cannot decide: %s", error)
            raise HTTPException(503, "redis_cell: the rate limiter cannot decide") from None

    async def async_pre_call_deployment_hook(self, kwargs: dict[str, Any], call_type: Any) -> Any:
        """Takes from the limits of the deployment that the router calls, whatever name the request has used.

        The first call of the expected model has taken already. Another attempt is a request of the model. A call of
        another model takes from its limits. The first model's units come back when the request is settled.
        """
        if (admission := self._mine(kwargs)) is None:
            await self._take_for_own(kwargs, call_type)
            return None
        admission.api = admission.api or call_type
        if call_type != admission.api:
            return None  # the same upstream request, which is translated
        model = _called(kwargs) or admission.model
        admission.attempts += 1
        admission.refused = False
        self._begin(kwargs, admission, model)
        if model is None:
            return None
        if admission.several:
            await self._take_for(model, admission, model)
        elif model != admission.model:
            await self._take_for(model, admission, None)
            admission.model = model
            await self._leave(admission, admission.taken[:-1])
        elif admission.attempts > 1:
            await self._take_again(model, admission)
        return None

    def _begin(self, kwargs: Mapping[str, Any], admission: Admission, model: str | None) -> None:
        """Begins to count the requests of a call of a deployment."""
        again = None if model is None else partial(self._take_again, model, admission)
        _upstream.set(Upstream(_call_id(kwargs), again, _upstream.get()))

    @staticmethod
    def _end(kwargs: Mapping[str, Any]) -> None:
        """Continues to count the requests of the call that has waited for this one."""
        if (upstream := _upstream.get()) is not None and upstream.call_id == _call_id(kwargs):
            _upstream.set(upstream.outer)

    async def _take_again(self, model: str, admission: Admission) -> None:
        """Takes from the limits of a model for another request of the same call."""
        again = [part for part in self._parts_of(model, admission.estimated) if part.unit in ("requests", "pause")]
        await self._taken_or_raise(Taken(again, self._hold()), model, admission)

    async def _take_for_own(self, kwargs: Mapping[str, Any], call_type: object) -> None:
        """Takes from the limits of a model for an upstream request that LiteLLM adds to another request: to embed or
        classify it for an auto-router, to check it, to mirror it."""
        outer, model = _admission.get(), _called(kwargs)
        log = kwargs.get("litellm_logging_obj")
        if outer is None or getattr(log, "litellm_call_id", None) == outer.call_id:
            return  # the last is the same upstream request, which is translated
        waiting = _upstream.get()
        is_within = waiting is not None and waiting.call_id == outer.call_id and not waiting.sent
        if is_within and model == outer.model and call_type != outer.api:  # so is this one, which has another id
            outer.own[_call_id(kwargs)] = outer
            return
        estimated = self._estimate(kwargs, call_type)
        own = Admission([], outer.flow, _call_id(kwargs), model, estimated, attempts=1, api=call_type, is_own=True)
        self._begin(kwargs, own, model)
        if model is not None and self._parts_of(model, estimated):
            await self._take_for(model, own, None)
            outer.own[own.call_id] = own
            self._tasks.start(self._watch(own, asyncio.current_task()))

    async def _take_for(self, model: str, admission: Admission, several: str | None) -> None:
        """Takes from the limits of a model."""
        parts = self._parts_of(model, admission.estimated)
        taken = Taken(parts, self._hold(), Together(cast(Any, None)), several)
        await self._taken_or_raise(taken, model, admission)
        admission.taken.append(taken)

    async def _taken_or_raise(self, taken: Taken, model: str, admission: Admission) -> None:
        """Takes from limits, or raises an exception that the router takes for the upstream's."""
        if taken.parts and not await self._take(taken, [part.take for part in taken.parts], admission.flow):
            admission.refused = True
            raise litellm.RateLimitError(f"redis_cell: a limit of the model {model} is reached", "redis_cell", "")

    async def _leave(self, admission: Admission, earlier: list[Taken]) -> None:
        """Releases the places of a model that a request has left. Its units come back when the request is settled."""
        for taken in earlier:
            leases = taken.leases()
            for part in taken.parts:
                part.unused = part.unused or part.scope == "model"
            left = [each for each in leases if each not in taken.leases()]
            if left and taken.by_server:
                await self._tell(wire.msettle(*(Release(key, lease) for key, lease in left)))
            else:
                for key, lease in left:
                    await self.guard.release(key, lease)

    def _hold(self) -> Hold:
        """Returns a new hold, which is renewed while its request runs."""
        return Hold(f"{{{self.prefix}}}:holds", secrets.token_hex(8), self.lease)

    def _parts_of(self, model: str, estimated: Estimate) -> list[Part]:
        """Returns the units that an upstream request takes from the limits of its model."""
        if (limits := self._limits_of("model", model, None)) is None:
            return []
        price = self._price(limits, [model], estimated)
        return self._parts("model", model, limits, estimated.tokens, price, secrets.token_hex(8))

    def _estimate(self, data: Mapping[str, Any], api: object) -> Estimate:
        if _name(api) == "call_mcp_tool":  # whose data is that of a chat
            return Estimate(0, 0)
        if _name(api) in RESPONSES:  # which an estimate tells from embeddings by the name of their longest answer
            data = {"max_output_tokens": None, **data}
        return self.estimate({**data, **_like_openai(data)} if "contents" in data else data)

    def _admission_of(self, user: Any, data: Mapping[str, Any], call_type: object) -> Admission:
        called = _names(data)
        several = len(called) > 1
        model = None if several else _model_of(called[0])
        every: list[tuple[Scope, str | None, Any]] = [
            ("model", model or None, None),
            ("key", user.api_key, getattr(user, "metadata", None)),
            ("user", user.user_id, None),
            ("team", user.team_id, getattr(user, "team_metadata", None)),
            ("organisation", user.org_id, getattr(user, "organization_metadata", None)),
            ("member", f"{user.team_id}/{user.user_id}" if user.team_id and user.user_id else None, None),
            ("end_user", user.end_user_id, None),
            *(("tag", tag, None) for tag in _tags_of(data)),
        ]
        found = [
            (scope, name, limits)
            for scope, name, metadata in every
            if name is not None and (limits := self._limits_of(scope, name, metadata)) is not None
        ]
        flow = next((name for scope, name, _ in every if scope == self.flow), None)
        if sum(scope == "tag" for scope, _, _ in found) > MOST_TAGS:
            raise HTTPException(400, f"redis_cell: a request can have at most {MOST_TAGS} tags with limits")
        tokens = self._estimate(data, call_type)
        models = [_model_of(name) or name for name in called]
        price = max((self._price(limits, models, tokens) for _, _, limits in found), default=0)
        holder, parts = secrets.token_hex(8), list[Part]()
        for scope, name, limits in found:
            parts += self._parts(scope, name, limits, tokens.tokens, price, holder, len(called))
        chain = [each for scope, _, limits in found if scope == "model" for each in self._chain(limits, tokens)]
        # No request waits in the queue of a pause, or for the month of a model that others follow.
        parts.sort(key=lambda part: part.unit == "pause" or (part.scope == "model" and bool(chain)))
        taken = [Taken(parts, self._hold())]
        return Admission(taken, flow, _call_id(data), model, tokens, several, chain=chain)

    def _chain(self, limits: Limits, tokens: Estimate) -> Iterator[tuple[str, Part]]:
        """Returns the models that follow a model, with what a request takes from their months."""
        while (model := limits.otherwise) is not None:
            limits = self._limits_of("model", model, None) or Limits()
            parts = self._parts_of(model, tokens)
            yield model, next(part for part in parts if part.unit in COUNTED)

    @staticmethod
    def _price(limits: Limits, models: list[str], tokens: Estimate) -> int:
        return 0 if limits.dollars_per_month is None else sum(micro_dollars(price_of(each, tokens)) for each in models)

    def _parts(
        self, scope: Scope, name: str, limits: Limits, tokens: int, price: int, holder: str, calls: int = 1
    ) -> list[Part]:
        """Returns the units that a request takes from the limits of a name, for `calls` upstream requests."""

        def made(name: str, **options: Any) -> Limit | None:
            count = getattr(limits, name)
            return None if count is None else _LIMITERS[name](count, **options)

        counts: tuple[tuple[Unit, str, Limit | None, int], ...] = (
            ("tokens", "tpm", made("tokens_per_minute"), tokens * calls),
            ("requests", "rpm", made("requests_per_minute"), calls),
            ("tokens", "month", made("tokens_per_month"), tokens * calls),
            ("micro-dollars", "money", made("dollars_per_month"), price),
            ("calls at once", "busy", made("calls_at_once", lease=self.lease, holder=holder), 1),
            ("pause", "pause", GATE if scope == "model" and limits.otherwise is None else None, 0),
        )
        return [
            # More than the limit is refused, and the server would not read every larger number.
            Part(scope, unit, Take(self._key(scope, name, kind), limit, min(quantity, limit.limit + 1)))
            for unit, kind, limit, quantity in counts
            if limit is not None
        ]

    def _limits_of(self, scope: Scope, name: str, metadata: Any) -> Limits | None:
        own = metadata.get(METADATA) if isinstance(metadata, Mapping) else None
        if own is not None:
            try:
                return Limits.of(own)
            except (TypeError, ValueError) as error:
                _log.error("the limits in the metadata of the %s %s are wrong: %s", scope, name, error)
                raise HTTPException(403, f"redis_cell: the limits in the metadata of the {scope} are wrong") from None
        given = self.limits.get(scope)
        if given is None or isinstance(given, Limits):
            return given
        return given.get(name, given.get("*"))

    def _key(self, scope: str, name: str, kind: str) -> str:
        # The braces put all keys into one slot of a cluster, so that one call can take from all of them.
        return f"{{{self.prefix}}}:{scope}:{short(name)}:{kind}"

    async def _ask(self, taken: Taken, pools: list[Pools], flow: str | None) -> Together[Answer]:
        hold = taken.hold if taken.held() else None
        first, *others = pools
        if not self.max_wait or not isinstance(first, Take):
            answer = await self.guard.run(wire.mtake(first, *others, hold=hold, new=True))
        else:
            # The prefix is needed because a name from outside may equal the name of a kind of limiter.
            name = None if flow is None else f"{self.flow}:{flow}"
            weight = None if flow is None else self.weights.get(flow, self.weights.get("*"))
            call = wire.bmtake(first, *others, timeout=None, flow=name, weight=weight, hold=hold, new=True)
            answer = await async_answer(self.guard, call, self.max_wait)
        taken.answer = answer
        return answer

    def _refusal(self, admission: Admission) -> HTTPException:
        rows, answer = admission.rows(), admission.taken[0].answer
        assert answer is not None
        if any(row.decided_by == "fail_closed" for _, row in rows):
            return HTTPException(503, "redis_cell: the rate limiter is unavailable")
        # A request that alone exceeds a limit would never be admitted, so other limits are of no interest.
        kinds = RefusedForever if isinstance(answer.combined, RefusedForever) else (Refused, RefusedForever)
        refusing = [(part, row) for part, row in rows if isinstance(row, kinds)]
        what = ", ".join(f"{part.unit} of the {part.scope}" for part, _ in refusing)
        if isinstance(answer.combined, RefusedForever):
            return HTTPException(413, f"redis_cell: the request alone exceeds the limit: {what}")
        # Places usually become free long before their leases end.
        waits = [1 if part.unit == "calls at once" else math.ceil(row.retry_after or 0) for part, row in refusing]
        headers = {"retry-after": str(max([1, *waits])), **self._headers(admission)}
        return HTTPException(429, f"redis_cell: a limit is reached: {what}", headers=headers)

    # After the call.

    async def async_post_call_success_hook(self, data: Any, user_api_key_dict: Any, response: Any) -> Any:
        """Settles a request whose answer is not a stream, before the client gets the answer."""
        if (admission := self._mine(data)) is None:
            return response
        for answer in response if isinstance(response, list) else [response]:
            hidden = cast(Mapping[str, Any], getattr(answer, "_hidden_params", None) or {})
            if admission.several:
                if hidden.get("cache_hit"):  # LiteLLM logs only one of several
                    await self._report(admission, {"model_info": {"id": hidden.get("model_id")}}, 0, 0)
            # Of embeddings, a part may be from the cache. LiteLLM logs the usage of the others.
            elif getattr(answer, "usage", None) is not None and not _is_batch(answer) and not hidden.get("cache_hit"):
                api = getattr(data.get("litellm_logging_obj"), "call_type", None)
                await self._settle(admission, *_used(answer, hidden.get("response_cost"), api))
        return response

    async def async_post_call_success_deployment_hook(self, request_data: Any, response: Any, call_type: Any) -> Any:
        """Settles one of several upstream requests."""
        self._end(request_data)
        admission, cost = self._mine(request_data), None
        if admission is not None and admission.several and getattr(response, "usage", None) is not None:
            with contextlib.suppress(Exception):  # it knows the prices in the configuration of the deployment
                cost = request_data["litellm_logging_obj"].response_cost_calculator(result=response)
            await self._report(admission, request_data, *_used(response, cost))

    async def async_post_call_failure_deployment_hook(
        self, request_data: Any, exception: Exception, call_type: Any, *args: Any, **kwargs: Any
    ) -> None:
        """Settles one of several upstream requests, or one that LiteLLM has added."""
        self._end(request_data)
        admission = self._mine(request_data)
        if admission is not None and admission.several:
            await self._report(admission, request_data, *_failed(exception))
        elif admission is not None and admission.call_id == _call_id(request_data) and admission.is_own:
            await self._settle(admission, 0, 0)

    async def _report(self, admission: Admission, kwargs: Any, tokens: int | None, price: int | None) -> None:
        """Settles one of several upstream requests for its model, and counts its usage for the other limits."""
        model = _called(kwargs)
        for taken in admission.taken:
            if taken.model == model is not None and not taken.reported:
                return await asyncio.shield(self._tasks.start(self._report_taken(admission, taken, tokens, price)))

    def _report_taken(
        self, admission: Admission, taken: Taken, tokens: int | None, price: int | None
    ) -> Awaitable[None]:
        """Counts the usage of an upstream request at once, so that no other one is taken for it, and settles it."""
        taken.reported = True
        estimated = admission.estimated
        admission.tokens += estimated.tokens if tokens is None else tokens
        admission.price += micro_dollars(price_of(str(taken.model), estimated)) if price is None else price
        return self._settle_taken(taken, admission.flow, tokens, price)

    async def async_log_success_event(self, kwargs: Any, response_obj: Any, start_time: Any, end_time: Any) -> None:
        """Settles a request whose stream has ended or whose client has left."""
        if (admission := self._mine(kwargs)) is None:
            return
        is_cached = bool(kwargs.get("cache_hit"))
        used = _used(response_obj, kwargs.get("response_cost"), kwargs.get("call_type"), is_cached)
        if admission.several:
            if kwargs.get("stream"):  # of which the hooks above see no usage
                await self._report(admission, kwargs, *used)
        elif _is_batch(response_obj):
            await self._settle(admission, 0, 0)
            if kwargs.get("call_type") == "aretrieve_batch" and _is_final(response_obj):
                await self._charge_batch(admission, response_obj, kwargs)
        else:
            await self._settle(admission, *used)

    async def _charge_batch(self, admission: Admission, batch: Any, kwargs: Mapping[str, Any]) -> None:
        """Charges the usage of the requests in a batch to the months of its model and of the caller that retrieves it
        first.

        Limits of minutes are not charged, because the requests have run before, in up to a day.
        """
        tokens, model = _total(getattr(batch, "usage", None)), _called(kwargs) or _model_of_rows(batch)
        parts = [part for part in admission.parts if part.scope != "model"]
        parts += [] if model is None else self._parts_of(model, admission.estimated)
        months = [part for part in parts if isinstance(part.take.limit, Fixed)]
        if tokens is not None and months:
            hold = replace(self._hold(), owner=f"batch:{_id_of(batch)}")
            used = Taken(months, hold).used(tokens, _micros(kwargs.get("response_cost")) or 0)
            await self._charge(used, hold, None, BATCHES)

    async def async_post_call_failure_hook(
        self, request_data: Any, original_exception: Any, user_api_key_dict: Any, traceback_str: Any = None
    ) -> None:
        """Settles a request that has finally failed. If a stream broke off, the request has used tokens."""
        if (admission := self._mine(request_data)) is not None and not admission.several:
            usage, cost = request_data.get("combined_usage_object"), request_data.get("response_cost")
            # Without an answer, LiteLLM estimates the prompt, but the upstream has refused the request or failed.
            began = bool(getattr(usage, "completion_tokens", 0))
            used = (_total(usage), _micros(cost)) if began else _failed(original_exception)
            await self._settle(admission, *used)

    async def async_log_failure_event(self, kwargs: Any, response_obj: Any, start_time: Any, end_time: Any) -> None:
        """Pauses all requests of a model with one deployment when the upstream answers 429."""
        admission, error = self._mine(kwargs), kwargs.get("exception")
        model = _called(kwargs) or (admission.model if admission is not None else None)
        if admission is None or model is None or getattr(error, "status_code", None) != 429:
            return
        # An SDK replaces the error of a refusal.
        is_refusal = admission.refused or getattr(error, "llm_provider", None) == "redis_cell"
        if is_refusal or _is_of_caller(kwargs) or not _has_one_deployment(model):
            return
        headers = getattr(getattr(error, "response", None), "headers", None) or {}
        own = getattr(error, "litellm_response_headers", None) or {}
        wait = retry_after({str(name).lower(): str(value) for name, value in {**headers, **own}.items()}, time.time())
        wait = PAUSE if wait is None else wait
        if wait > 0:
            await self._tell(wire.pause(self._key("model", model, "pause"), GATE, min(wait, LONGEST_PAUSE)))

    async def async_post_call_response_headers_hook(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        """Returns headers for the remaining units, with the names that upstreams use."""
        admission = self._mine(data)
        return None if admission is None else self._headers(admission) or None

    def _headers(self, admission: Admission) -> dict[str, str]:
        headers: dict[str, str] = {}
        for unit in ("requests", "tokens"):
            if rows := [row for part, row in admission.rows() if part.unit == unit]:
                row = min(rows, key=lambda row: row.remaining)
                headers[f"x-ratelimit-limit-{unit}"] = str(row.limit)
                headers[f"x-ratelimit-remaining-{unit}"] = str(row.remaining)
        return headers

    def _mine(self, kwargs: Any) -> Admission | None:
        """Returns the admission of this request, or of an upstream request that LiteLLM has added to it."""
        admission, name = _admission.get(), _call_id(kwargs)
        while admission is not None and name != admission.call_id:
            if name in admission.own:
                return admission.own[name]
            admission = admission.outer
        return admission

    async def _settle(self, admission: Admission, tokens: int | None, price: int | None) -> None:
        if admission.settled:
            return
        admission.settled = True
        admission.done.set()
        # The shield settles the request even if it is cancelled now.
        await asyncio.shield(self._tasks.start(self._settle_all(admission, tokens, price)))

    async def _settle_all(self, admission: Admission, tokens: int | None, price: int | None) -> None:
        for taken in admission.taken:
            if taken.model is not None and not taken.reported:  # its usage is unknown
                await self._report_taken(admission, taken, None, None)
        if admission.several:
            tokens, price = admission.tokens, admission.price
        for taken in admission.taken:
            if taken.model is None:
                await self._settle_taken(taken, admission.flow, tokens, price)

    async def _settle_taken(self, taken: Taken, flow: str | None, tokens: int | None, price: int | None) -> None:
        """Settles the units of a call. With None, an estimate does not change."""
        if not taken.by_server:
            for key, lease in taken.leases():
                await self.guard.release(key, lease)
        elif takes := taken.used(tokens, price):
            shared = takes[0].key == taken.parts[0].take.key and flow is not None and self.max_wait > 0
            await self._charge(takes, taken.hold, f"{self.flow}:{flow}" if shared else None)

    async def _charge(self, takes: list[Take], hold: Hold, flow: str | None, kept: float = KEPT) -> None:
        once = Once(f"{hold.key!s}:{hold.owner!s}", max(kept, self.lease))
        await self._tell(wire.settle(*takes, hold=hold, once=once, flow=flow))

    async def _tell(self, call: wire.Call[Any]) -> None:
        try:
            await self.guard.cell.run(call)
        except Exception as error:  # what is held comes back, and a place becomes free when its lease ends
            _log.error("%s was not sent: %s", call.name, error)

    async def _watch(self, admission: Admission, task: asyncio.Task[Any] | None) -> None:
        """Renews places and holds while the request runs, and settles the request afterwards if no hook does."""
        if task is not None:
            task.add_done_callback(lambda _: admission.done.set())
        while not admission.done.is_set():
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(admission.done.wait(), self.lease / 3)
            for taken in admission.taken if not admission.done.is_set() else ():
                if not taken.by_server or taken.reported:
                    continue
                if renewals := [Renew(key, lease) for key, lease in taken.leases()]:
                    await self._tell(wire.msettle(*renewals))
                if held := [replace(take, quantity=0) for take in taken.held()]:
                    await self._tell(wire.mtake(*held, hold=taken.hold))
        if not admission.settled:
            upstreams = [taken for taken in admission.taken if taken.model is not None]
            if not (upstreams and all(each.reported for each in upstreams)):
                await asyncio.sleep(min(SETTLED, self.lease / 3))
            await self._settle(admission, None, None)


def _total(usage: Any) -> int | None:
    """Returns the tokens in a usage report, or None if it has none. Not every upstream reports the total."""

    def read(*names: str) -> list[int]:
        parts = (usage.get(name) if isinstance(usage, Mapping) else getattr(usage, name, None) for name in names)
        return [part for part in parts if isinstance(part, int)]

    totals = (read("total_tokens"), read("prompt_tokens", "completion_tokens"), read("input_tokens", "output_tokens"))
    total = max((sum(parts) for parts in totals if parts), default=-1)
    return total if total >= 0 else None


def _micros(dollars: Any) -> int | None:
    """Returns a price in millionths of a dollar, or None if it is none: an upstream may report a usage below 0."""
    with contextlib.suppress(TypeError, ValueError):
        return micro_dollars(dollars)
    return None


def _used(response: Any, dollars: Any, api: object = None, is_cached: bool = False) -> tuple[int | None, int | None]:
    """Returns the tokens and the price of an answer, in millionths of a dollar. None is unknown."""
    if is_cached or _name(api) in STORED:
        return 0, 0
    tokens, price = _total(getattr(response, "usage", None)), _micros(dollars)
    if tokens == 0 and getattr(response, "object", None):  # which is LiteLLM's usage if the upstream reports none
        return None, price or None
    return tokens, price


def _like_openai(data: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the text of a request of Google's API, and its longest answer, under the names that OpenAI's API has."""

    def text(content: Any) -> Any:
        if isinstance(content, Mapping):
            return [text(part) for name, part in content.items() if name not in ("inlineData", "inline_data")]
        return [text(part) for part in content] if isinstance(content, list) else content

    given = data.get("generationConfig")
    config = cast(Mapping[str, Any], given) if isinstance(given, Mapping) else {}
    contents = [text(data.get(name)) for name in ("contents", "systemInstruction", "system_instruction")]
    return {"messages": contents, "max_tokens": config.get("maxOutputTokens"), "n": config.get("candidateCount")}


def _failed(error: object) -> tuple[int | None, int | None]:
    """Returns the usage of a request that has failed. The upstream may answer one after its timeout."""
    return (None, None) if isinstance(error, litellm.Timeout) else (0, 0)


def _name(api: object) -> str:
    """Returns the name of an API, which may be a member of an enumeration."""
    return str(getattr(api, "value", api))


def _is_batch(response: Any) -> bool:
    return getattr(response, "object", None) == "batch"


def _is_final(batch: Any) -> bool:
    """Returns whether a batch has ended and its answers have arrived, so that its usage and price stay as they are."""
    ended = getattr(batch, "status", None) in ("completed", "complete", "failed", "cancelled", "expired")
    return ended and getattr(batch, "output_file_id", None) is not None


def _model_of_rows(batch: Any) -> str | None:
    """Returns the model of a batch that belongs to no deployment, by the rows of its answers."""
    names = set(cast(Mapping[str, Any], getattr(batch, "_hidden_params", None) or {}).get("batch_models") or ())
    return _model_of(names.pop()) if len(names) == 1 else None


def _id_of(batch: Any) -> str:
    """Returns the upstream's id of a batch, to which the proxy adds the model at some time after the call."""
    with contextlib.suppress(ImportError):
        from litellm.proxy.openai_files_endpoints import common_utils as ids

        managed = ids.convert_b64_uid_to_unified_uid(str(batch.id))
        if "llm_batch_id:" in managed:
            return ids.get_batch_id_from_unified_batch_id(managed)
        return ids.get_original_file_id(str(batch.id))
    return str(batch.id)


def _tags_of(data: Mapping[str, Any]) -> list[str]:
    """Returns the tags of a request, without repetitions."""
    given = [data, data.get("metadata"), data.get("litellm_metadata")]
    lists = [part.get("tags") for part in given if isinstance(part, Mapping)]
    return list(dict.fromkeys(tag for tags in lists if isinstance(tags, list) for tag in tags if isinstance(tag, str)))


def _has_one_deployment(model: str) -> bool:
    with contextlib.suppress(Exception):
        return len(_router().get_model_list(model_name=model) or []) == 1
    return False


__all__ = ["Estimate", "Limiter", "Limits", "estimate", "micro_dollars"]
