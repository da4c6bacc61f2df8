"""A fake model server, which streams words and records what it has done. Usage: uvicorn model:app --port 9000

A request may say in a field `fake` how the model shall behave:

tokens       number of words in the answer; up to `max_tokens` at random if it is missing
word         each word of the answer
pause        seconds before each word
stall_after  number of words after which the model is silent until its client goes away
break_after  number of words after which the model closes the connection, in the middle of an event
status       status of an answer without words, with `retry_after` in its header
usage        "last": report the usage only in the last event, as most models do, and not in each one
piece        true: answer in one piece, whatever the request says
odd          true: name the type of a stream in capitals, end lines with CR, and do not end the last event
"""

import asyncio
import json
import random
import time
from typing import Callable


class Model:
    def __init__(self):
        self.requests: dict[str | None, float] = {}  # the instants at which they came, by the name of their `user`
        self.running = self.most_running = 0
        self.tokens: list[float] = []  # the instant of each token, of prompts and of answers

    async def __call__(self, scope: dict, receive: Callable, send: Callable) -> None:
        if scope["type"] == "lifespan":
            for event in "startup", "shutdown":
                await receive()
                await send({"type": f"lifespan.{event}.complete"})
            return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        request = json.loads(body)
        self.requests[request.get("user")] = time.monotonic()
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        gone = asyncio.create_task(receive())
        try:
            await self.answer(request, send, gone)
        finally:
            gone.cancel()
            self.running -= 1

    async def answer(self, request: dict, send: Callable, gone: asyncio.Task) -> None:
        fake = request.get("fake", {})
        if "status" in fake:
            headers = [(b"retry-after", str(fake["retry_after"]).encode())] if "retry_after" in fake else []
            return await respond(send, fake["status"], {"error": {"message": "as asked for"}}, headers)

        prompt = sum(len(message["content"].split()) for message in request["messages"])
        words = fake.get("tokens", random.randint(1, request["max_tokens"]))
        self.tokens += [time.monotonic()] * prompt
        odd, word = fake.get("odd", False), fake.get("word", "word ")
        streamed = request.get("stream") and not fake.get("piece")
        if streamed:
            kind = b"Text/Event-Stream" if odd else b"text/event-stream"
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})

        async def event(delta: dict, done: int, last: bool = False) -> None:
            if streamed:
                each = fake.get("usage") != "last" and request["stream_options"]["continuous_usage_stats"]
                content = {"choices": [] if last else [{"delta": delta}], "usage": usage(prompt, done)}
                data = f"data: {json.dumps(content if last or each else content | {'usage': None})}"
                end = ("" if last else "\r\r") if odd else "\n\n"
                await send({"type": "http.response.body", "body": (data + end).encode(), "more_body": True})

        await event({"role": "assistant"}, 0)
        for done in range(words):
            if done == fake.get("break_after"):
                return await send({"type": "http.response.body", "body": b'data: {"cho', "more_body": True})
            pause = None if done == fake.get("stall_after") else fake.get("pause", 0)
            await asyncio.wait([gone], timeout=pause)
            if gone.done():
                return
            self.tokens.append(time.monotonic())
            await event({"content": word}, done + 1)
        await event({}, words, last=True)
        if streamed:
            await send({"type": "http.response.body", "body": b"" if odd else b"data: [DONE]\n\n"})
        else:
            choices = [{"message": {"role": "assistant", "content": word * words}}]
            await respond(send, 200, {"choices": choices, "usage": usage(prompt, words)})


def usage(prompt: int, answer: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}


async def respond(send: Callable, status: int, body: dict, headers: list[tuple[bytes, bytes]] = []) -> None:
    headers = [(b"content-type", b"application/json"), *headers]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(body).encode()})


app = Model()
