"""A typed client for the Redis module redis-cell. `redis_cell.limits` is a storage for the library limits."""

from .accounts import Account, AsyncAccount, AsyncHeld, Held
from .answers import (
    Admitted,
    Answer,
    Balance,
    Booked,
    Booking,
    DecidedBy,
    Decision,
    Key,
    RateLimited,
    Refused,
    RefusedForever,
    Together,
    TopKey,
)
from .budgets import AsyncBudget, AsyncStep, Budget, BudgetExceeded, BudgetWarning, Step
from .client import AsyncCell, AsyncClient, Backend, Cell, SyncClient
from .leased import AsyncLeased, Leased, Verdict
from .limiters import Bucket, Calendar, Counted, Fixed, Funnel, Lease, Limit, Log, Rate, Total, Window
from .merged import AsyncMerged, Merged
from .observing import observe
from .places import AsyncPlace, Place, limited
from .refusals import AsyncRefusals, Refusals
from .times import Seconds
from .unavailable import AsyncGuard, FailClosed, FailOpen, Guard, Local, WhenUnavailable
from .waiting import async_wait, wait
from .wire import Call, Change, Else, Hold, Once, Release, Renew, Settle, Spill, Take

__all__ = [
    "Account",
    "Admitted",
    "Answer",
    "AsyncAccount",
    "AsyncBudget",
    "AsyncCell",
    "AsyncClient",
    "AsyncGuard",
    "AsyncHeld",
    "AsyncLeased",
    "AsyncMerged",
    "AsyncPlace",
    "AsyncRefusals",
    "AsyncStep",
    "Backend",
    "Balance",
    "Booked",
    "Booking",
    "Bucket",
    "Budget",
    "BudgetExceeded",
    "BudgetWarning",
    "Calendar",
    "Call",
    "Cell",
    "Change",
    "Counted",
    "DecidedBy",
    "Decision",
    "Else",
    "FailClosed",
    "FailOpen",
    "Fixed",
    "Funnel",
    "Guard",
    "Held",
    "Hold",
    "Key",
    "Lease",
    "Leased",
    "Limit",
    "Local",
    "Log",
    "Merged",
    "Once",
    "Place",
    "Rate",
    "RateLimited",
    "Refusals",
    "Refused",
    "RefusedForever",
    "Release",
    "Renew",
    "Seconds",
    "Settle",
    "Spill",
    "Step",
    "SyncClient",
    "Take",
    "Together",
    "TopKey",
    "Total",
    "Verdict",
    "WhenUnavailable",
    "Window",
    "async_wait",
    "limited",
    "observe",
    "wait",
]
