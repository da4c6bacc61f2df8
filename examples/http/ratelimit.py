"""Rate limiting of HTTP requests with CL.THROTTLE, as WSGI and as ASGI middleware. Needs only redis-py."""

import json
import logging
import ssl
from dataclasses import dataclass
from typing import Callable, Sequence

import redis
import redis.asyncio
from redis import exceptions as errors

Headers = list[tuple[str, str]]
UNKNOWN = "unknown"  # the client of all requests without an address, as through a Unix socket


@dataclass(frozen=True)
class Policy:
    """One request and `max_burst` more at once, and `count` per `period` seconds in the long run."""

    name: str
    max_burst: int
    count: int
    period: int

    def __post_init__(self):
        if ":" in self.name:  # it ends the name in a key, where the client follows
            raise ValueError(f"the name of a policy has no colon: {self.name!r}")

    def call(self, client: str) -> tuple:
        # In milliseconds, because a whole second is too coarse for the time until the next unit.
        return "CL.THROTTLE", f"http:{self.name}:{client}", self.max_burst, self.count, self.period * 1000, 1, "MS"

    def headers(self, reply: Sequence[int]) -> Headers:
        limited, limit, remaining, retry_after, reset_after = reply
        period, count = self.period * 1000, self.count  # one unit takes period / count, which may be no whole number
        window = seconds(limit * period, count)
        if limited:
            next_unit = seconds(retry_after)
        else:
            next_unit = seconds(reset_after * count - (limit - remaining - 1) * period, count)
        headers = [
            ("RateLimit-Policy", f'"{self.name}";q={limit};w={window}'),
            ("RateLimit", f'"{self.name}";r={remaining};t={next_unit}'),
            ("X-RateLimit-Limit", str(limit)),
            ("X-RateLimit-Remaining", str(remaining)),
            ("X-RateLimit-Reset", str(seconds(reset_after))),
        ]
        return headers + [("Retry-After", str(seconds(retry_after)))] if limited else headers

    def refusal(self) -> bytes:
        return json.dumps(
            {
                "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
                "title": "Too many requests",
                "status": 429,
                "violated-policies": [self.name],
            }
        ).encode()


def seconds(milliseconds: int, divisor: int = 1) -> int:
    """Rounds up: a client that waits for this time must not be refused because of rounding."""
    return -(-milliseconds // (1000 * divisor))


# The errors of a server that does not decide now. Three kinds of ConnectionError are errors of the setup.
UNAVAILABLE = (
    errors.ConnectionError,
    errors.TimeoutError,
    errors.ClusterDownError,
    errors.OutOfMemoryError,
    errors.ReadOnlyError,
    errors.TryAgainError,
)
SET_UP = (errors.AuthenticationError, errors.AuthorizationError, errors.MaxConnectionsError)


def is_unavailable(error: redis.RedisError) -> bool:
    """Whether no server decides now. All other errors are errors of the call or of the setup: they must be seen."""
    if isinstance(error, SET_UP) or isinstance(error.__cause__ or error.__context__, ssl.SSLCertVerificationError):
        return False
    return isinstance(error, UNAVAILABLE) or str(error).startswith(("BUSY ", "MISCONF ", "NOREPLICAS "))


PROBLEM: Headers = [("Content-Type", "application/problem+json")]
NO_DECISION = json.dumps({"title": "Rate limiter unavailable", "status": 503}).encode()


class RateLimitWSGI:
    """Wraps a WSGI application. `client_of` names the limited client, from the request's environment."""

    def __init__(
        self,
        app: Callable,
        client: redis.Redis,
        policy: Policy,
        fail_open: bool,
        client_of: Callable[[dict], str] = lambda environ: environ.get("REMOTE_ADDR") or UNKNOWN,
    ):
        self.app, self.client, self.policy, self.fail_open, self.client_of = app, client, policy, fail_open, client_of

    def __call__(self, environ: dict, start_response: Callable):
        try:
            reply = self.client.execute_command(*self.policy.call(self.client_of(environ)))
        except redis.RedisError as error:
            if not is_unavailable(error):
                raise  # the web server responds with 500
            logging.warning("no rate limit: %s", error)
            if self.fail_open:
                return self.app(environ, start_response)
            start_response("503 Service Unavailable", PROBLEM)
            return [NO_DECISION]
        headers = self.policy.headers(reply)
        if reply[0]:
            start_response("429 Too Many Requests", headers + PROBLEM)
            return [self.policy.refusal()]

        def start(status: str, own: Headers, exc_info=None):
            return start_response(status, own + headers, exc_info)

        return self.app(environ, start)


class RateLimitASGI:
    """Wraps an ASGI application. `client_of` names the limited client, from the connection's scope."""

    def __init__(
        self,
        app: Callable,
        client: redis.asyncio.Redis,
        policy: Policy,
        fail_open: bool,
        client_of: Callable[[dict], str] = lambda scope: (scope.get("client") or [""])[0] or UNKNOWN,
    ):
        self.app, self.client, self.policy, self.fail_open, self.client_of = app, client, policy, fail_open, client_of

    async def __call__(self, scope: dict, receive: Callable, send: Callable):
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        try:
            reply = await self.client.execute_command(*self.policy.call(self.client_of(scope)))
        except redis.RedisError as error:
            if not is_unavailable(error):
                raise  # the web server responds with 500
            logging.warning("no rate limit: %s", error)
            if self.fail_open:
                return await self.app(scope, receive, send)
            return await respond(send, 503, PROBLEM, NO_DECISION)
        headers = self.policy.headers(reply)
        if reply[0]:
            return await respond(send, 429, headers + PROBLEM, self.policy.refusal())

        async def send_with_headers(message: dict):
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *as_bytes(headers)]}
            await send(message)

        return await self.app(scope, receive, send_with_headers)


def as_bytes(headers: Headers) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode(), value.encode()) for name, value in headers]


async def respond(send: Callable, status: int, headers: Headers, body: bytes):
    await send({"type": "http.response.start", "status": status, "headers": as_bytes(headers)})
    await send({"type": "http.response.body", "body": body})
