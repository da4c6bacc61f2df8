"""Classifies the errors of the client libraries. No I/O."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

_PREFIXES = ("READONLY", "LOADING", "CLUSTERDOWN", "MASTERDOWN", "TRYAGAIN", "OOM", "MISCONF", "NOREPLICAS", "BUSY ")
_CLASSES = ("ReadOnlyError", "ClusterDownError", "TryAgainError", "OutOfMemoryError")
_CLUSTER = ("RedisClusterException", "ValkeyClusterException", "ClusterError")
FULL = ("Too many connections", "No connection available.")
_NO_CLUSTER = "Cluster mode is not enabled"


def is_full(errors: Any, error: Exception) -> bool:
    """Whether all connections of the client's pool are in use, which says nothing about the server."""
    return isinstance(error, errors.MaxConnectionsError) or str(error) in FULL


def _is_set_up_wrong(refused: tuple[type[Exception], ...], error: Exception) -> bool:
    """Whether the setup must change before a server can answer. The libraries may report such an error as a lost
    connection."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, (*refused, ssl.SSLCertVerificationError)) or _NO_CLUSTER in str(cause):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def is_unavailable(errors: Any, error: Exception) -> bool:
    """Whether an error means that the server is unavailable. `errors` is the module of the client library's errors.

    True if no server answers, or if the server answers that it cannot write. False for errors that only a change of the
    program or its configuration fixes: a wrong password, a key of another type, a full pool, a single server in place
    of a cluster, or a certificate that is untrusted, has expired or is for another server.
    """
    refused = (errors.AuthenticationError, getattr(errors, "AuthorizationError", errors.AuthenticationError))
    if is_full(errors, error) or _is_set_up_wrong(refused, error):
        return False
    names = (*_CLASSES, *_CLUSTER)
    classes = tuple(getattr(errors, name) for name in names if hasattr(errors, name))
    if isinstance(error, (errors.ConnectionError, errors.TimeoutError, OSError, asyncio.TimeoutError, *classes)):
        return True
    return isinstance(error, errors.ResponseError) and str(error).startswith(_PREFIXES)


def is_lost(errors: Any, error: Exception) -> bool:
    """Whether to repeat a call that may be repeated: it is unknown whether it was run, or it can soon be run."""
    demoted = isinstance(error, errors.ResponseError) and str(error).startswith("UNBLOCKED force")
    return demoted or is_unavailable(errors, error)
