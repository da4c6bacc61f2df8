"""Rate limiting of HTTP requests as a middleware of Django, by a Guard of the package redis_cell.

The settings have a dictionary RATE_LIMIT, which settings.py explains.
"""

import math
from collections.abc import Callable
from datetime import timedelta

import redis
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse, JsonResponse
from redis.backoff import NoBackoff
from redis.retry import Retry

from redis_cell import Admitted, Answer, Cell, Guard, Local, Rate, WhenUnavailable

REQUIRED = {"url", "name", "rate", "key", "when_unavailable"}


class RateLimit:
    """The middleware. It takes one unit for each request, and answers 429 if there is none.

    If the server is unavailable, the Guard decides by the setting `when_unavailable`: FailOpen passes the request on
    without the fields of the limit, because nothing is known of it, FailClosed answers 503, and Local decides in this
    process.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        options = getattr(settings, "RATE_LIMIT", {})
        if options.keys() != REQUIRED:
            raise ImproperlyConfigured(f"RATE_LIMIT must have {sorted(REQUIRED)}, and has {sorted(options)}")
        if ":" in options["name"]:  # it ends the name in a key, where the client follows
            raise ImproperlyConfigured(f"the name of a limit has no colon: {options['name']!r}")
        self.get_response = get_response
        self.name: str = options["name"]
        self.rate: Rate = options["rate"]
        self.key: Callable[[HttpRequest], str] = options["key"]
        self.when_unavailable: WhenUnavailable = options["when_unavailable"]
        per = self.rate.per
        self.unit = (per.total_seconds() if isinstance(per, timedelta) else per) / self.rate.count
        # A limiter that does not answer is given up after half a second, and the call is not sent again.
        client = redis.Redis.from_url(
            options["url"], socket_timeout=0.5, socket_connect_timeout=0.5, retry=Retry(NoBackoff(), 0)
        )
        self.guard = Guard(Cell(client), when_unavailable=self.when_unavailable)

    def __call__(self, request: HttpRequest) -> HttpResponse:
        answer = self.guard.throttle(f"http:{self.name}:{self.key(request)}", self.rate)
        if answer.decided_by == "fail_open":
            return self.get_response(request)
        if answer.decided_by == "fail_closed":
            return self.problem(503, "Rate limiter unavailable", answer)
        response = self.get_response(request) if answer else self.problem(429, "Too many requests", answer)
        for name, value in self.fields(answer).items():
            response[name] = value
        return response

    def problem(self, status: int, title: str, answer: Answer) -> HttpResponse:
        content = {"title": title, "status": status}
        response = JsonResponse(content, status=status, content_type="application/problem+json")
        if answer.retry_after is not None:
            response["Retry-After"] = str(seconds(answer.retry_after))
        return response

    def fields(self, answer: Answer) -> dict[str, str]:
        """The fields of the limit, as docs/http.md explains them."""
        unit = self.unit
        if answer.decided_by == "local" and isinstance(self.when_unavailable, Local):
            unit *= self.when_unavailable.share  # this process has a part of the rate
        if isinstance(answer, Admitted):
            next_unit = answer.reset_after - (answer.limit - answer.remaining - 1) * unit
        else:
            next_unit = answer.retry_after or 0
        return {
            "RateLimit-Policy": f'"{self.name}";q={answer.limit};w={seconds(answer.limit * unit)}',
            "RateLimit": f'"{self.name}";r={answer.remaining};t={seconds(next_unit)}',
            "X-RateLimit-Limit": str(answer.limit),
            "X-RateLimit-Remaining": str(answer.remaining),
            "X-RateLimit-Reset": str(seconds(answer.reset_after)),
        }


def seconds(time: float) -> int:
    """Rounds up, because a client that waits for this time must not be refused. Times are exact to the microsecond."""
    return math.ceil(round(time, 6))
