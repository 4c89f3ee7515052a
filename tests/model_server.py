"""A model server on loopback, in OpenAI's shape, with its own log of what it served.

`server.lm()` is a real `dspy.LM("openai/gpt-4o-mini")`, so usage, price, cache, retries and errors are
those of the real client.
"""

import json
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import dspy

Messages = list[dict[str, Any]]

# US dollars per token of gpt-4o-mini and gpt-4.1-mini, as their maker states them.
PRICES = {"gpt-4o-mini": (0.15e-6, 0.60e-6), "gpt-4.1-mini": (0.40e-6, 1.60e-6)}


class Served(NamedTuple):
    """One answer of the server."""

    model: str
    messages: Messages
    text: str
    input_tokens: int
    output_tokens: int
    begun: float
    ended: float

    @property
    def cost(self) -> float:
        read, written = PRICES[self.model]
        return self.input_tokens * read + self.output_tokens * written

    @property
    def case(self) -> str:
        """The first mark such as `case-17` in what was asked."""
        found = re.search(r"case-\d+", text_of(self.messages[-1:]) + text_of(self.messages))
        return found.group() if found else ""


class RefusedError(Exception):
    """Raised by an answer to have the server refuse the call."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class ModelServer:
    """Answers with a function of the messages, after a delay; a word is a token."""

    def __init__(
        self, answer: Callable[[Messages], str], delay: Callable[[Messages], float] = lambda messages: 0.0
    ) -> None:
        self.answer = answer
        self.delay = delay
        self.served: list[Served] = []
        self.refused = 0
        self.lock = threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # else headers and body are 40 ms apart

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                try:
                    status, answer = 200, server.completion(body)
                except RefusedError as refusal:
                    status, answer = refusal.status, {"error": {"message": "refused", "type": "refused"}}
                data = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Retry-After", "0")  # else a client waits for a second before it asks again
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None: ...

        class Server(ThreadingHTTPServer):
            request_queue_size = 256

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"

    def __enter__(self) -> "ModelServer":
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def lm(self, model: str = "openai/gpt-4o-mini", **options: Any) -> dspy.LM:
        return dspy.LM(model, api_base=self.url, api_key="none", **{"cache": False} | options)

    def completion(self, body: dict[str, Any]) -> dict[str, Any]:
        begun = time.perf_counter()
        messages = body["messages"]
        try:
            text = self.answer(messages)
        except RefusedError:
            with self.lock:
                self.refused += 1
            raise
        time.sleep(self.delay(messages))
        served = Served(
            body["model"], messages, text, len(text_of(messages).split()), len(text.split()), begun, 0.0
        )._replace(ended=time.perf_counter())
        with self.lock:
            self.served.append(served)
            number = len(self.served)
        return {
            "id": f"chatcmpl-{number}",
            "object": "chat.completion",
            "created": 1,
            "model": body["model"],
            "choices": [
                {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
            ],
            "usage": {
                "prompt_tokens": served.input_tokens,
                "completion_tokens": served.output_tokens,
                "total_tokens": served.input_tokens + served.output_tokens,
            },
        }

    def of(self, model: str) -> list[Served]:
        return [served for served in self.served if served.model == model]

    def by_case(self, model: str = "gpt-4o-mini") -> dict[str, list[Served]]:
        cases: dict[str, list[Served]] = defaultdict(list)
        for served in self.of(model):
            cases[served.case].append(served)
        return dict(cases)


def text_of(messages: Messages) -> str:
    """Give all text of messages, one after another."""
    texts: list[str] = []
    for message in messages:
        content = message["content"]
        parts = [{"text": content}] if isinstance(content, str) else content
        texts += [part["text"] for part in parts if "text" in part]
    return "\n".join(texts)


def fields_asked_for(messages: Messages) -> list[str]:
    """Find the output fields that DSPy's ChatAdapter asks for, in order."""
    asked = text_of(messages[-1:]).split("Respond with the corresponding output fields")[-1]
    return re.findall(r"`\[\[ ## (\w+) ## \]\]`", asked)


def in_fields(**values: object) -> Callable[[Messages], str]:
    """Answer each field that is asked for with its value, or with words of the case's own number."""

    def answer(messages: Messages) -> str:
        asked = fields_asked_for(messages)
        found = re.search(r"case-(\d+)", text_of(messages[-1:]) + text_of(messages))
        words = " ".join(["word"] * (int(found.group(1)) % 13 + 1 if found else 1))
        texts = [f"[[ ## {name} ## ]]\n{values.get(name, words)}" for name in asked if name != "completed"]
        return "\n\n".join([*texts, "[[ ## completed ## ]]"])

    return answer
