"""A process that calls an upstream by an SDK: python worker.py WAY URL PORT CALLS LIMIT PERIOD."""

from __future__ import annotations

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import redis
import redis.asyncio

from redis_cell import AsyncCell, Cell, Rate
from redis_cell.httpx import AsyncTransport, Transport

way, url, port, calls, limit, period = sys.argv[1:]
MESSAGES: Any = [{"role": "user", "content": "hello"}]
THREADS = 8
# As many requests in any period as the upstream admits: a burst of half, and the rate of the other half.
RATE = Rate(int(limit) // 2, per=float(period), burst=int(limit) // 2 - 1)


def openai_calls() -> None:
    import openai

    transport = Transport(Cell(redis.Redis(port=int(port))), "upstream", RATE)
    client = openai.OpenAI(
        api_key="k", base_url=url + "/v1", http_client=openai.DefaultHttpxClient(transport=transport), max_retries=0
    )

    def call(_: int) -> None:
        client.chat.completions.create(model="fake", messages=MESSAGES)

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(call, range(int(calls))))


async def anthropic_calls() -> None:
    import anthropic

    cell = AsyncCell(redis.asyncio.Redis(port=int(port)))
    http = anthropic.DefaultAsyncHttpxClient(transport=AsyncTransport(cell, "upstream", RATE))
    client = anthropic.AsyncAnthropic(api_key="k", base_url=url, http_client=http, max_retries=0)
    await asyncio.gather(
        *(client.messages.create(model="fake", max_tokens=5, messages=MESSAGES) for _ in range(int(calls)))
    )


def langchain_calls() -> None:
    import urllib.request

    from langchain_core.callbacks import CallbackManagerForLLMRun
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage, BaseMessage
    from langchain_core.outputs import ChatGeneration, ChatResult

    from redis_cell.langchain import RateLimiter

    class Model(BaseChatModel):
        """A chat model that calls the upstream."""

        @property
        def _llm_type(self) -> str:
            return "upstream"

        def _generate(
            self,
            messages: list[BaseMessage],
            stop: list[str] | None = None,
            run_manager: CallbackManagerForLLMRun | None = None,
            **kwargs: Any,
        ) -> ChatResult:
            urllib.request.urlopen(url + "/v1/chat/completions", data=b"{}").close()
            return ChatResult(generations=[ChatGeneration(message=AIMessage("hello"))])

    model = Model(rate_limiter=RateLimiter(Cell(redis.Redis(port=int(port))), "upstream", RATE))
    half = int(calls) // 2
    model.batch(["hello"] * half)
    asyncio.run(model.abatch(["hello"] * (int(calls) - half)))


if way == "anthropic":
    asyncio.run(anthropic_calls())
else:
    {"openai": openai_calls, "langchain": langchain_calls}[way]()
