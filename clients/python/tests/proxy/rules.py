"""What the proxies of test_litellm.py are told: whose key is whose, and the limits."""

from __future__ import annotations

import os
from typing import Any

from litellm.proxy._types import UserAPIKeyAuth

from redis_cell import FailClosed
from redis_cell.litellm import Limiter, Limits

limiter = Limiter(
    os.environ["REDIS_URL"],
    when_unavailable=FailClosed(ask_again=0.1),
    limits={
        "model": {
            "requests": Limits(requests_per_minute=50),
            "used": Limits(tokens_per_minute=100_000, tokens_per_month=1_000_000, dollars_per_month="10"),
            "month": Limits(tokens_per_month=1000),
            "money": Limits(dollars_per_month="0.001"),
            "places": Limits(calls_at_once=5),
            "long": Limits(calls_at_once=5),
            "fair": Limits(calls_at_once=2),
            "paused": Limits(requests_per_minute=1000),
            "again": Limits(requests_per_minute=2),
            "sdk": Limits(requests_per_minute=1000),
            "sdk2": Limits(requests_per_minute=2),
            "first": Limits(requests_per_minute=1000, tokens_per_month=1_000_000, calls_at_once=50),
            "second": Limits(requests_per_minute=10, tokens_per_month=1_000_000, calls_at_once=50),
            "responses": Limits(requests_per_minute=5, tokens_per_month=1_000_000),
            "claude": Limits(requests_per_minute=5, tokens_per_month=1_000_000),
            "ways": Limits(requests_per_minute=3, tokens_per_month=1_000_000, dollars_per_month="10"),
            "odd": Limits(tokens_per_month=2**63 - 1, dollars_per_month="10", calls_at_once=5),
            "wild/*": Limits(requests_per_minute=3, tokens_per_month=1_000_000),
            "embedder": Limits(requests_per_minute=1000, tokens_per_month=1_000_000),
            "ordered": Limits(requests_per_minute=3, tokens_per_month=1_000_000),
            "ours": Limits(requests_per_minute=3, tokens_per_month=1_000_000),
            "fake": Limits(tokens_per_minute=1000, tokens_per_month=9000),
            "batched": Limits(tokens_per_minute=1000, tokens_per_month=9000, dollars_per_month="1"),
            "warm": Limits(requests_per_minute=1000),
            "killed": Limits(requests_per_minute=30, tokens_per_month=1_000_000, calls_at_once=10),
            "stranded": Limits(tokens_per_month=1_000_000, dollars_per_month="10"),
            "dear": Limits(dollars_per_month="0.001", otherwise="cheap"),
            "cheap": Limits(tokens_per_month=500),
            "tagged": Limits(requests_per_minute=1000),
        },
        "tag": {"eval": Limits(requests_per_minute=4)},
        "end_user": {"ann": Limits(requests_per_minute=3)},
        "member": {"free3/member": Limits(requests_per_minute=2)},
        "team": {"red": Limits(requests_per_minute=15)},
        "user": {
            "tight": Limits(requests_per_minute=2),
            "all": Limits(tokens_per_month=1_000_000),
            "batcher": Limits(tokens_per_minute=1000, tokens_per_month=9000),
        },
    },
    max_wait=25,
    lease=4,
    timeout=10,  # four proxies and other tests share two processors
)


async def auth(request: Any, api_key: str) -> UserAPIKeyAuth:
    """A key is `sk-TEAM-USER`, and a team that is not free is of the organisation acme."""
    team, user = api_key.removeprefix("sk-").split("-")
    metadata = {"redis_cell": {"requests_per_minute": 40}}
    if team.startswith("free"):
        aliases = {"aliases": {"of-key": "ways"}, "team_model_aliases": {"of-team": "ways"}}
        own: Any = {"model_rpm_limit": {"loose": 1, "ways": 1}} if team == "free5" else {}  # limits of LiteLLM
        return UserAPIKeyAuth(api_key=api_key, user_id=user, team_id=team, metadata=own, **aliases)
    return UserAPIKeyAuth(api_key=api_key, user_id=user, team_id=team, org_id="acme", organization_metadata=metadata)
