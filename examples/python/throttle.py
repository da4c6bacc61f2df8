"""CL.THROTTLE with redis-py. Usage: throttle.py [URL of the server] [URL of one that is down]"""

import logging
import ssl
import sys
import time
from typing import NamedTuple

import redis
from redis import exceptions as errors
from redis.backoff import NoBackoff
from redis.retry import Retry


class Decision(NamedTuple):
    limited: int
    limit: int
    remaining: int
    retry_after: int
    reset_after: int


class Limiter:
    def __init__(self, url: str, max_burst: int, count: int, period: int):
        # Timeouts are short, because a slow limiter is of no use. The client keeps a pool of connections and replaces
        # broken ones. It does not retry, because a call whose reply was lost may have been admitted.
        self.client = redis.Redis.from_url(
            url, socket_connect_timeout=0.5, socket_timeout=0.5, retry=Retry(NoBackoff(), 0)
        )
        self.limit = (max_burst, count, period)

    def throttle(self, key: str, quantity: int = 1) -> Decision:
        return Decision(*self.client.execute_command("CL.THROTTLE", key, *self.limit, quantity))


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


def handle(limiter: Limiter, key: str, fail_open: bool) -> tuple[int, dict[str, str]]:
    """Handles an HTTP request: returns the status and headers of its response."""
    try:
        decision = limiter.throttle(key)
    except redis.RedisError as error:
        if not is_unavailable(error):
            logging.error("%s: %s", key, error)
            return 500, {}
        logging.warning("no decision on %s: %s", key, error)
        return (200, {}) if fail_open else (503, {})
    if decision.limited:
        return 429, {"Retry-After": str(decision.retry_after)}
    return 200, {}


def main() -> None:
    url = sys.argv[1] if len(sys.argv) > 1 else "redis://127.0.0.1:6379"
    url_down = sys.argv[2] if len(sys.argv) > 2 else "redis://127.0.0.1:1"  # nothing listens there
    key = "example:python"
    limiter = Limiter(url, max_burst=2, count=30, period=60)  # 3 at once, then one every 2 seconds
    limiter.client.delete(key)
    for _ in range(4):
        decision = limiter.throttle(key)
        print(
            f"{'refused' if decision.limited else 'admitted'}: limit {decision.limit}, remaining {decision.remaining},"
            f" retry after {decision.retry_after}, reset after {decision.reset_after}"
        )
    status, headers = handle(limiter, key, fail_open=False)
    print(f"a request now: {status}, Retry-After: {headers['Retry-After']}")
    time.sleep(int(headers["Retry-After"]))
    print("a request after the wait:", handle(limiter, key, fail_open=False)[0])

    limiter.client.set(key, "of another type")
    print("an error of the call, fail open:", handle(limiter, key, fail_open=True)[0])
    limiter.client.delete(key)

    down = Limiter(url_down, max_burst=2, count=30, period=60)
    print("server down, fail open:", handle(down, key, fail_open=True)[0])
    print("server down, fail closed:", handle(down, key, fail_open=False)[0])


if __name__ == "__main__":
    main()
