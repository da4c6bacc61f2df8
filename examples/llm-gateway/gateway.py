"""A gateway in front of a language model. Each organisation has four limits, which one call of CL.MTAKE checks before
a request, and which one call of CL.MSETTLE corrects after it. If all organisations share an account with the model, a
request waits for its turn instead, by CL.BMTAKE.

Usage: uvicorn --factory gateway:application --timeout-graceful-shutdown 5

Environment: REDIS_URL, UPSTREAM (URL of the model), ORGANISATIONS (path of a file such as organisations.toml)
"""

import asyncio
import contextlib
import json
import logging
import math
import os
import secrets
import time
import tomllib
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Awaitable, Callable

import httpx
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.maint_notifications import MaintNotificationsConfig

PATH = "/v1/chat/completions"
LARGEST_BODY = 1_000_000  # bytes
DEFAULT_MAX_TOKENS = 1000  # of a request that does not say how long its answer may be
MOST_TOKENS = 1_000_000_000  # of an answer
LONGEST_PAUSE = 86_400  # seconds for which a model may refuse all requests
LONGEST_WAY = 0.1  # seconds for which the reply to a call that has waited is on its way
WRITE_TIMEOUT = 30  # seconds in which a client must read a piece of its answer
MINUTE = 60_000  # milliseconds, the unit of all calls
LIMITS = ("requests a minute", "tokens a minute", "tokens a month", "requests at once")  # in the order of CL.MTAKE

log = logging.getLogger("gateway")


@dataclass(frozen=True)
class Organisation:
    """The limits of an organisation, as arguments of the commands. All times are milliseconds."""

    name: str
    requests_a_minute: int
    tokens_a_minute: int
    tokens_at_once: int
    tokens_a_month: int
    requests_at_once: int
    lease: int = 120  # seconds, after which the place of a gateway that has crashed is free again
    weight: int = 1  # its share of the account, relative to the others
    account: "Account | None" = None

    def key(self, limiter: str) -> str:
        # The braces put all keys of a call into one slot of a cluster.
        return f"{{{self.account.name}}}:{self.name}:{limiter}" if self.account else f"{{{self.name}}}:{limiter}"

    def requests(self) -> tuple:
        return self.key("rpm"), "THROTTLE", self.requests_a_minute - 1, self.requests_a_minute, MINUTE, 1

    def tokens(self, quantity: int, minute: tuple = (), month: tuple = ()) -> tuple:
        """`minute` and `month` stand before the limiters: RESET, in a settlement."""
        rate = "THROTTLE", self.tokens_at_once - 1, self.tokens_a_minute, MINUTE, quantity
        quota = "FIXED", self.tokens_a_month, "MONTH", quantity
        return self.key("tpm"), *minute, *rate, self.key("month"), *month, *quota

    def place(self, lease: int, holder: str) -> tuple:
        return self.key("busy"), "LEASE", self.requests_at_once, lease * 1000, holder


@dataclass(frozen=True)
class Account:
    """An account with the model that all organisations share, and how their requests wait for it."""

    name: str
    tokens_a_minute: int
    tokens_at_once: int
    wait: float  # seconds, at most
    most_waiting: int  # requests of one organisation

    def tokens(self, quantity: int, *reset: int | str) -> tuple:
        rate = "THROTTLE", self.tokens_at_once - 1, self.tokens_a_minute, MINUTE, quantity
        return f"{{{self.name}}}:account", *reset, *rate

    def turn(self, organisation: Organisation) -> tuple:
        flow = "FLOW", f"org:{organisation.name}", "WEIGHT", organisation.weight
        return *flow, "TIMEOUT", self.wait, "MAXLEN", self.most_waiting


class Admission:
    """What a request takes before its answer and settles after it."""

    def __init__(
        self, redis: Redis, organisation: Organisation, prompt: int, longest: int, waiting: Redis | None = None
    ):
        self.redis, self.waiting, self.organisation = redis, waiting or redis, organisation
        self.account = organisation.account
        self.prompt, self.estimate = prompt, prompt + longest
        self.holder = secrets.token_hex(8)
        self.reply: list[list[int]] | None = []
        self.admitted = False
        self.used = 0

    async def take(self) -> None:
        self.since = time.monotonic()
        limits, account = self.organisation, self.account
        all_of_it = *limits.requests(), *limits.tokens(self.estimate), *limits.place(limits.lease, self.holder)
        if account:  # what all wait for comes first
            call = "CL.BMTAKE", *account.tokens(self.estimate), *all_of_it, *account.turn(limits), "MS"
            self.reply = await self.waiting.execute_command(*call)
            self.since = max(self.since, time.monotonic() - LONGEST_WAY)  # it was taken at the end of the wait
        else:
            self.reply = await self.redis.execute_command("CL.MTAKE", *all_of_it, "MS")
        self.admitted = self.reply is not None and self.reply[0][0] == 0

    async def hold(self) -> None:
        """Renews the lease for as long as the answer takes. Returns when the place is lost: the server says so, or the
        gateway could not renew in time."""
        lease, key = self.organisation.lease, self.organisation.key("busy")
        end = self.since + lease  # the lease begins later, when the call arrives
        while (left := end - time.monotonic()) > 0:
            await asyncio.sleep(min(lease / 3, left))
            asked = time.monotonic()
            renew = "CL.RENEW", key, lease * 1000, self.holder, "MS"
            renewal = asyncio.ensure_future(self.redis.execute_command(*renew))
            # A cancelled call could hide the cancellation: asyncio.wait_for in Python 3.11 does so.
            try:
                async with asyncio.timeout(end - asked):
                    if not await asyncio.shield(renewal):
                        return
                end = asked + lease
            except (RedisError, TimeoutError) as error:  # there may be time for another attempt
                log.warning("lease not renewed: %r", error)

    def read(self, text: bytes, streamed: bool) -> None:
        """Reads an answer, or a line of one that is streamed. It reports the usage so far. An event without a report
        counts as one token, and before the first report the prompt is charged as estimated."""
        try:
            answer = json.loads(text.removeprefix(b"data:"))
            if answer.get("usage"):
                total = answer["usage"]["total_tokens"]
                if type(total) is int and 0 <= total <= MOST_TOKENS:
                    self.used = total
            elif streamed and answer.get("choices"):
                self.used = (self.used or self.prompt) + 1
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            pass  # an empty line, a comment, the end mark

    async def settle(self) -> None:
        """Charges what was used instead of the estimate, and releases the place."""
        if not self.admitted:
            return
        limits, age = self.organisation, math.ceil((time.monotonic() - self.since) * 1000)
        first = 1 if self.account else 0  # the row of the account comes before those of the organisation
        resets = [("RESET", row[4]) for row in self.reply[1:]]  # until when what was taken is owed
        tokens = limits.tokens(self.used - self.estimate, *resets[first + 1 : first + 3])
        flow = ()
        if self.account:  # organisations share it by what they have used
            tokens = *self.account.tokens(self.used - self.estimate, *resets[0]), *tokens
            flow = "FLOW", f"org:{limits.name}", "WEIGHT", limits.weight
        call = "CL.MSETTLE", *tokens, *limits.place(0, self.holder), "AGO", age, *flow, "MS"
        try:
            await self.redis.execute_command(*call)
        except RedisError as error:  # the estimate stays charged, and the place is free when the lease ends
            log.error("not settled: %s", error)

    async def pause(self, wait: int) -> None:
        """Stops all requests of the account, or of the organisation if it has its own, since the model would refuse
        them."""
        key, _, *limit, _ = self.account.tokens(0) if self.account else self.organisation.requests()
        try:
            await to_the_end(self.redis.execute_command("CL.PAUSE", key, *limit, wait * 1000, "MS"))
        except RedisError as error:
            log.error("not paused: %s", error)


class Client:
    """The client's side of a request."""

    def __init__(self, scope: dict, receive: Callable, send: Callable):
        self.method, self.path = scope["method"], scope["path"]
        self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        self.receive, self.send = receive, send
        self.started = self.streaming = False

    async def body(self) -> bytes:
        """Returns the body of the request. It may be too large, and is then incomplete."""
        body, more = b"", True
        while more and len(body) <= LARGEST_BODY:
            message = await self.receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        return body

    async def gone(self) -> None:
        """Returns when the client has closed its connection."""
        while True:
            # uvicorn reads no further when bytes of another request arrive, until it is asked again.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    if (await self.receive())["type"] == "http.disconnect":
                        return

    async def start(self, status: int, content_type: str, headers: dict[str, str] | None = None) -> None:
        headers = {"content-type": content_type, **(headers or {})}
        encoded = [(name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in headers.items()]
        self.started = True
        await self.transmit({"type": "http.response.start", "status": status, "headers": encoded})

    async def write(self, body: bytes, more: bool = True) -> None:
        self.streaming = self.streaming and more
        await self.transmit({"type": "http.response.body", "body": body, "more_body": more})

    async def transmit(self, message: dict) -> None:
        """Sends a part of the response. Fails with a TimeoutError if the client does not read."""
        async with asyncio.timeout(WRITE_TIMEOUT):
            await self.send(message)

    async def fail(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        """Reports an error: as a response, or in a stream, whose status has been sent, as its last event."""
        error = json.dumps({"error": {"code": status, "message": message}}).encode()
        if self.streaming:  # the model may have stopped within an event
            await self.write(b"\n\ndata: " + error + b"\n\n", more=False)
        elif not self.started:
            await self.start(status, "application/json", headers)
            await self.write(error, more=False)


class Gateway:
    def __init__(self, redis_url: str, upstream: str, organisations: dict[str, Organisation]):
        self.organisations = organisations  # by API key
        self.requests: set[asyncio.Task] = set()
        # No retries: a call whose reply was lost may have been admitted. The URL may set other timeouts, of which the
        # first is for a free connection.
        timeouts = {"timeout": 10, "socket_connect_timeout": 2, "socket_timeout": 2}
        # With maintenance notifications, redis-py sends calls on connections that the server has closed.
        notifications = MaintNotificationsConfig(enabled=False)
        options = {"retry": Retry(NoBackoff(), 0), "maint_notifications_config": notifications, **timeouts}
        pool = BlockingConnectionPool.from_url(redis_url, max_connections=50, **options)
        self.redis = self.waiting = Redis(connection_pool=pool)
        if account := next((each.account for each in organisations.values() if each.account), None):
            # Each request that waits has a connection of its own.
            most = account.most_waiting * len(organisations) + 50
            pool = BlockingConnectionPool.from_url(redis_url, max_connections=most, **options)
            pool.connection_kwargs["socket_timeout"] = account.wait + timeouts["socket_timeout"]
            self.waiting = Redis(connection_pool=pool)
        self.model = httpx.AsyncClient(
            base_url=upstream,
            headers={"accept-encoding": "identity", "content-type": "application/json"},
            timeout=httpx.Timeout(600, connect=5),  # of silence; a long answer in one piece takes minutes
            limits=httpx.Limits(max_connections=None, keepalive_expiry=2),  # before the model closes a connection
        )

    async def __call__(self, scope: dict, receive: Callable, send: Callable) -> None:
        if scope["type"] == "lifespan":
            return await self.lifespan(receive, send)
        request = asyncio.current_task()
        self.requests.add(request)
        client = Client(scope, receive, send)
        try:
            await self.handle(client)
        except asyncio.CancelledError:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await client.fail(503, "the gateway is stopping")
        except TimeoutError:
            log.warning("a client has not read its answer for %s seconds", WRITE_TIMEOUT)
        finally:
            self.requests.discard(request)

    async def lifespan(self, receive: Callable, send: Callable) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        if self.requests:  # they have been cancelled, and settle
            await asyncio.wait(self.requests)
        await self.model.aclose()
        for redis in {self.redis, self.waiting}:
            await redis.aclose(close_connection_pool=True)
        await send({"type": "lifespan.shutdown.complete"})

    async def handle(self, client: Client) -> None:
        scheme, _, key = client.headers.get("authorization", "").partition(" ")
        organisation = self.organisations.get(key) if scheme.lower() == "bearer" else None
        if organisation is None:
            return await client.fail(401, "unknown API key", {"www-authenticate": "Bearer"})
        if client.path != PATH:
            return await client.fail(404, f"this gateway has only {PATH}")
        if client.method != "POST":
            return await client.fail(405, f"{PATH} is for POST", {"allow": "POST"})
        body = await client.body()
        if len(body) > LARGEST_BODY:
            return await client.fail(413, f"the request is larger than {LARGEST_BODY} bytes")
        try:
            request = json.loads(body.decode("utf-8-sig"))  # in UTF-16 a body can have fewer bytes than tokens
            longest = longest_answer(request)
            streamed = request.get("stream") or False
            if type(streamed) is not bool:
                raise ValueError("stream must be true or false")
            if streamed:  # ask for the usage in each event, in which vLLM counts one choice only, or else in the last one
                each = request.get("n") in (None, 1)
                request["stream_options"] = {"include_usage": True, "continuous_usage_stats": each}
            forwarded = json.dumps(request, allow_nan=False)
        except (ValueError, AttributeError, RecursionError) as error:
            return await client.fail(400, f"not a request: {error}")

        # An upper bound for text: a token of the prompt has at least one byte.
        admission = Admission(self.redis, organisation, len(body), longest, self.waiting)
        try:
            await to_the_end(admission.take())
            if admission.admitted:
                await self.answer(client, admission, forwarded, streamed)
            else:
                await refuse(client, admission)
        except RedisError as error:
            log.error("no decision: %s", error)
            await client.fail(503, "the limits cannot be checked")
        finally:
            await to_the_end(admission.settle())

    async def answer(self, client: Client, admission: Admission, request: str, streamed: bool) -> None:
        """Answers until the answer is complete, the client is gone, or the place is lost."""
        gone = asyncio.create_task(client.gone())
        await asyncio.sleep(0)
        if gone.done():  # during the decision
            return
        # Nobody knows how far a model is with an answer in one piece before its end.
        admission.used = 0 if streamed else admission.estimate
        answer = asyncio.create_task(self.stream(client, admission, request))
        lost = asyncio.create_task(admission.hold())
        tasks = answer, gone, lost
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            ended = [task for task in tasks if task.done()]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)  # the connection to the model is closed before the place is released
        if answer in ended:
            answer.result()
        elif lost in ended and gone not in ended:
            await client.fail(503, "the place among the requests at once was lost")

    async def stream(self, client: Client, admission: Admission, request: str) -> None:
        try:
            async with self.model.stream("POST", PATH, content=request) as answer:
                if not 200 <= answer.status_code < 600:
                    raise httpx.RemoteProtocolError(f"status {answer.status_code}")
                content_type = answer.headers.get("content-type", "application/octet-stream")
                events = answer.is_success and content_type.lower().startswith("text/event-stream")
                admission.used = admission.estimate if answer.is_success and not events else 0
                wait, refused = seconds(answer.headers.get("retry-after", "1")), answer.status_code == 429
                headers = {"retry-after": str(wait)} if refused or "retry-after" in answer.headers else {}
                if refused:
                    await admission.pause(wait)
                    await client.fail(429, "the model has too many requests", headers)
                elif events:
                    await client.start(answer.status_code, content_type, headers)
                    client.streaming = True
                    rest = b""
                    async for chunk in answer.aiter_raw():
                        *lines, rest = (rest + chunk.replace(b"\r", b"\n")).split(b"\n")
                        for line in lines:
                            admission.read(line, streamed=True)
                        await client.write(chunk)
                    admission.read(rest, streamed=True)
                    await client.write(b"", more=False)
                else:
                    body = await answer.aread()
                    if answer.is_success:
                        admission.read(body, streamed=False)
                    await client.start(answer.status_code, content_type, headers)
                    await client.write(body, more=False)
        except httpx.HTTPError as error:
            if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout)):
                admission.used = 0
            log.warning("the model has failed: %r", error)
            await client.fail(502, "the model has failed")


def longest_answer(request: dict) -> int:
    """Returns the most tokens that the model may answer: so many choices, of so many tokens each. Sets a length if the
    request has none."""

    def number(name: str) -> int | None:
        given = request.get(name)
        if given is not None and (type(given) is not int or not 1 <= given <= MOST_TOKENS):
            raise ValueError(f"{name} must be an integer from 1 to {MOST_TOKENS}")
        return given

    # Models disagree on which of the two they obey.
    lengths = [length for name in ("max_tokens", "max_completion_tokens") if (length := number(name))]
    if not lengths:
        request["max_tokens"] = DEFAULT_MAX_TOKENS
        lengths = [DEFAULT_MAX_TOKENS]
    longest = (number("n") or 1) * max(lengths)
    if longest > MOST_TOKENS:
        raise ValueError(f"a request may ask for {MOST_TOKENS} tokens at most")
    return longest


async def refuse(client: Client, admission: Admission) -> None:
    if admission.reply is None:
        return await client.fail(429, "no turn in time", {"retry-after": "1"})
    (_, _, _, retry_after, _), *rows = admission.reply
    limits = LIMITS
    if admission.account:
        if not any(row[0] for row in rows[1:]) and retry_after >= 0:
            return await client.fail(429, "too many requests wait", {"retry-after": "1"})
        limits = "tokens a minute of the account", *LIMITS
    if retry_after >= 0:
        names = " and ".join(name for name, row in zip(limits, rows, strict=True) if row[0])
        # A place is told to be free when its lease ends, but most requests end long before.
        wait = max((math.ceil(row[3] / 1000) for row in rows[:-1] if row[0]), default=1)
        return await client.fail(429, f"no more {names}", {"retry-after": str(wait)})
    never = " and ".join(f"{row[1]} {name}" for name, row in zip(limits, rows, strict=True) if row[0] and row[3] < 0)
    await client.fail(413, f"a request for up to {admission.estimate} tokens is never admitted: the limit is {never}")


def seconds(retry_after: str) -> int:
    """Returns the seconds of a Retry-After field, which is a number or a date, or 1 if it is neither."""
    try:
        if retry_after.isdecimal():
            wait = int(retry_after)
        else:
            wait = math.ceil(parsedate_to_datetime(retry_after).timestamp() - time.time())
        return min(max(wait, 0), LONGEST_PAUSE)
    except (ValueError, OverflowError):
        return 1


async def to_the_end(work: Awaitable[Any]) -> None:
    """Awaits work to its end, also if this task is cancelled meanwhile. The cancellation is raised afterwards."""
    task, cancelled = asyncio.ensure_future(work), None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled:
        if not task.cancelled() and (error := task.exception()):
            log.error("failed while cancelled: %r", error)
        raise cancelled
    task.result()


def application() -> Gateway:
    path = os.environ.get("ORGANISATIONS", Path(__file__).with_name("organisations.toml"))
    organisations = tomllib.loads(Path(path).read_text())
    account = organisations.pop("account", None)
    account = account and Account("gateway", **account)
    return Gateway(
        os.environ.get("REDIS_URL", "redis://127.0.0.1:6379"),
        os.environ.get("UPSTREAM", "http://127.0.0.1:9000"),
        {key: Organisation(**limits, account=account) for key, limits in organisations.items()},
    )
