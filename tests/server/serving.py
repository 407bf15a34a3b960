"""An HTTP server as vLLM and SGLang show themselves from outside, on Eyas's own engine; whole, or with one thing wrong.

It is real in what the doctor sees: sockets, requests at once that are decoded in one batch, counters in Prometheus text. The
wrong things are those of public reports, each put into the engine or the protocol at one place.
"""

from __future__ import annotations

import itertools
import json
import queue
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from broken_engine import MAX_LENGTH, proposes_nonsense
from eyas.draft.model import Eagle3Draft
from eyas.engine.engine import Engine
from eyas.engine.request import Output, SamplingParams
from eyas.taps import Tap
from eyas.targets.target import Target

K, SLOTS = 3, 32
_GATHER_SECONDS = 0.02  # so long a batch waits for others that come at once
_OPENAI = {"model", "prompt", "messages", "max_tokens", "temperature", "top_p", "presence_penalty", "frequency_penalty"}
Spoil = Callable[[Engine], None]


@dataclass(frozen=True)
class Wrong:
    """What is wrong. engine: changes an engine once it is made. Of the others, each at one place of the protocol.

    cached_states: the draft reads zeros for a prompt that it has seen before. cached_prompt: a seen prompt loses a token.
    chunk: of a longer prompt only what follows its first so many tokens is read. strict: fields beyond OpenAI's are refused.
    plain: it decodes without the draft. stuck: it says what it serves, and answers no prompt.
    by_request: it counts the rounds of each request in its answer, as vLLM does when told to.
    most_at_once: of more requests than these at once it refuses those that are too many. restart: after so many answers it begins
    again to count, and without a draft that is any good.
    """

    engine: Spoil | None = None
    taps: tuple[Tap, ...] | None = None
    cached_states: bool = False
    cached_prompt: bool = False
    chunk: int | None = None
    render: Callable[[str], str] | None = None
    strict: bool = False
    counters: bool = True
    others: int = 0
    key: str | None = None
    plain: bool = False
    stuck: bool = False
    by_request: bool = False
    most_at_once: int | None = None
    restart: int | None = None


class _Http(ThreadingHTTPServer):
    request_queue_size = 128  # of five, as it is by default, a busy machine turns some away when many come at once


@dataclass
class _Job:
    prompt: list[int]
    params: SamplingParams
    seen: bool
    done: queue.Queue[Output] = field(default_factory=queue.Queue)


class Serving:
    """A server on a free port of 127.0.0.1, until it is closed. `engine`: vllm or sglang, as which it speaks."""

    def __init__(self, target: Target, draft: Eagle3Draft, taps: tuple[Tap, ...], wrong: Wrong | None = None, engine: str = "vllm") -> None:
        self.target, self.wrong, self.engine = target, wrong or Wrong(), engine
        used = None if self.wrong.plain else draft
        self._engine = Engine(target, used, self.wrong.taps or taps, num_draft_tokens=K, max_batch=SLOTS, max_length=2048)
        self._zeros = False
        self._break_engine()
        self._seen: set[tuple[str, tuple[int, ...]]] = set()
        self._answered = itertools.count(1)
        self.free = threading.BoundedSemaphore(self.wrong.most_at_once or SLOTS * SLOTS)
        self._jobs: queue.Queue[_Job | None] = queue.Queue()
        self._count()
        self._http = _Http(("127.0.0.1", 0), _handler(self))
        self._http.daemon_threads = True
        self._threads = [threading.Thread(target=self._work, daemon=True), threading.Thread(target=self._http.serve_forever, daemon=True)]
        for thread in self._threads:
            thread.start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._http.server_port}"

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._jobs.put(None)
        for thread in self._threads:
            thread.join(timeout=30)
        self._engine.close()

    # -- decoding ----------------------------------------------------------------------------------------------

    def answer(self, prompt: list[int], num_tokens: int, salt: str, temperature: float = 0.0) -> Output:
        if len(prompt) + num_tokens > MAX_LENGTH:
            raise ValueError(f"{len(prompt)} tokens leave no room for {num_tokens} more")
        if next(self._answered) == self.wrong.restart:
            self._count()
            proposes_nonsense(self._engine)
        mark = (salt, tuple(prompt))
        seen = mark in self._seen
        self._seen.add(mark)
        if seen and self.wrong.cached_prompt:
            prompt = prompt[:1] + prompt[2:]
        if self.wrong.chunk is not None and len(prompt) > self.wrong.chunk:
            prompt = prompt[self.wrong.chunk :]
        job = _Job(prompt, SamplingParams(num_tokens, temperature, seed=zlib.crc32(salt.encode())), seen)
        self._jobs.put(job)
        return job.done.get()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            batch = [job]
            time.sleep(_GATHER_SECONDS)
            while not self._jobs.empty() and len(batch) < SLOTS:
                other = self._jobs.get()
                if other is None:
                    return
                batch.append(other)
            self._zeros = self.wrong.cached_states and all(item.seen for item in batch)
            requests = [self._engine.add(item.prompt, item.params) for item in batch]
            while self._engine.has_work:
                self._engine.step()
            for item, request in zip(batch, requests, strict=True):
                self._add(request.output())
                item.done.put(request.output())

    def _break_engine(self) -> None:
        drafter = self._engine.drafter
        if drafter is None:
            return
        prefill = drafter.prefill

        def maybe_zeros(prompts: Any, states_BTS: torch.Tensor, first_B: Any, slots: Any) -> None:
            prefill(prompts, states_BTS * 0 if self._zeros else states_BTS, first_B, slots)

        drafter.prefill = maybe_zeros  # type: ignore[method-assign]
        if self.wrong.engine is not None:
            self.wrong.engine(self._engine)

    # -- counting ----------------------------------------------------------------------------------------------

    def _count(self) -> None:
        self.registry = CollectorRegistry()
        labels = {"model_name": "tiny", "engine": "0"}
        if self.engine == "sglang":
            names = ("accept_length", "accept_rate", "num_draft_tokens")
            self._gauges = {
                name: Gauge(f"sglang:spec_{name}", "-", list(labels), registry=self.registry).labels(**labels) for name in names
            }
            self._gauges["num_draft_tokens"].set(K + 1)
            return

        def make(name: str, *more: str) -> Counter:
            return Counter(f"vllm:{name}", "-", [*labels, *more], registry=self.registry)

        self._generated = make("generation_tokens").labels(**labels)
        if self.wrong.plain:
            return
        names = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
        self._counters = {name: make(f"spec_decode_{name}").labels(**labels) for name in names}
        by_position = make("spec_decode_num_accepted_tokens_per_pos", "position")
        self._positions = [by_position.labels(**labels, position=str(place)) for place in range(K)]

    def _add(self, output: Output) -> None:
        """As each of the two counts: only rounds that proposed something."""
        rounds = [round_ for round_ in output.rounds if round_.num_proposed]
        if self.engine == "sglang":
            accepted = sum(round_.num_accepted for round_ in rounds)
            self._gauges["accept_length"].set(1 + accepted / max(1, len(rounds)))
            self._gauges["accept_rate"].set(accepted / max(1, len(rounds) * K))
            return
        for round_ in rounds:
            self._counters["num_drafts"].inc()
            self._counters["num_draft_tokens"].inc(round_.num_proposed)
            self._counters["num_accepted_tokens"].inc(round_.num_accepted)
            for place in range(round_.num_accepted):
                self._positions[place].inc()
        self._generated.inc(len(output.tokens) + self.wrong.others)

    def metrics(self) -> bytes:
        return generate_latest(self.registry) if self.wrong.counters else b"# nothing here\n"

    # -- answers in each project's form --------------------------------------------------------------------------

    def completion(self, body: dict[str, Any], chat: bool) -> dict[str, Any]:
        spare = set(body) - _OPENAI
        if self.wrong.strict and spare:
            raise ValueError(f"unknown fields: {sorted(spare)}")
        salt = body.get("cache_salt")
        if salt is not None and (len(salt) > 128 or set(salt) & set("@/\\\0")):  # as vLLM 0.32 refuses it
            raise ValueError("'cache_salt' holds what it must not")
        prompt = self.render(body["messages"]) if chat else body["prompt"]
        prompt = self.target.tokenizer.encode(prompt, add_special_tokens=False) if isinstance(prompt, str) else prompt
        output = self.answer(prompt, body["max_tokens"], str(body.get("cache_salt")), body["temperature"])
        text = self.target.tokenizer.decode(list(output.tokens), skip_special_tokens=True)
        choice: dict[str, Any] = {"index": 0, "finish_reason": output.finish_reason}
        choice |= {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        answer: dict[str, Any] = {"choices": [choice], "usage": {"prompt_tokens": len(prompt), "completion_tokens": len(output.tokens)}}
        if self.wrong.by_request:
            answer["metrics"] = {"speculative_decoding": _counts(output)}
        if body.get("return_token_ids"):
            choice["token_ids"] = list(output.tokens)
            (answer if chat else choice)["prompt_token_ids"] = list(prompt)
        return answer

    def generated(self, body: dict[str, Any]) -> dict[str, Any]:
        sampling = body["sampling_params"]
        output = self.answer(body["input_ids"], sampling["max_new_tokens"], str(body.get("extra_key")), sampling["temperature"])
        rounds = [round_ for round_ in output.rounds if round_.num_proposed]
        meta: dict[str, Any] = {"prompt_tokens": len(body["input_ids"]), "completion_tokens": len(output.tokens)}
        meta |= {"finish_reason": {"type": output.finish_reason}}
        if self.wrong.plain:
            return {"text": self.target.tokenizer.decode(list(output.tokens)), "output_ids": list(output.tokens), "meta_info": meta}
        meta |= {"spec_verify_ct": len(rounds), "spec_num_correct_drafts": sum(round_.num_accepted for round_ in rounds)}
        meta |= {"spec_correct_drafts_histogram": _histogram(output), "spec_accept_length": len(output.tokens) / max(1, len(rounds))}
        return {"text": self.target.tokenizer.decode(list(output.tokens)), "output_ids": list(output.tokens), "meta_info": meta}

    def speculation(self) -> dict[str, Any]:
        """As SGLang says how it was started."""
        off = {"speculative_algorithm": None, "speculative_num_draft_tokens": None}
        return off if self.wrong.plain else {"speculative_algorithm": "EAGLE3", "speculative_num_draft_tokens": K + 1}

    def render(self, messages: list[dict[str, Any]]) -> list[int]:
        text = self.target.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        text = self.wrong.render(text) if self.wrong.render is not None else text
        return [int(token) for token in self.target.tokenizer.encode(text, add_special_tokens=False)]


def _histogram(output: Output) -> list[int]:
    """Rounds that accepted exactly 0 to K drafts."""
    rounds = [round_ for round_ in output.rounds if round_.num_proposed]
    return [sum(round_.num_accepted == count for round_ in rounds) for count in range(K + 1)]


def _counts(output: Output) -> dict[str, Any]:
    histogram = _histogram(output)
    rounds, accepted = sum(histogram), sum(place * count for place, count in enumerate(histogram))
    proposed = sum(round_.num_proposed for round_ in output.rounds)
    shares = {"mean_acceptance_length": 1 + accepted / max(1, rounds), "draft_acceptance_rate": accepted / max(1, proposed)}
    counts = {"num_spec_steps": rounds, "num_accepted_draft_tokens": accepted, "num_draft_tokens": proposed, "num_spec_tokens": K}
    return {**shares, "acceptance_histogram": histogram, **counts}


def _handler(serving: Serving) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self._refused():
                return
            pages: dict[str, Any] = {
                "/v1/models": {"data": [{"id": "tiny", "owned_by": serving.engine, "max_model_len": MAX_LENGTH}]},
                "/version": {"version": "0.32.0"},
                "/server_info": {"version": "0.5.23", "api_key": "not for reports", **serving.speculation()},
            }
            if self.path == "/metrics":
                self._send(200, serving.metrics(), "text/plain; version=0.0.4")
            elif self.path in pages:
                self._send(200, json.dumps(pages[self.path]).encode())
            else:
                self._send(404, b'{"detail": "Not Found"}')

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self._refused():
                return
            if serving.wrong.stuck:
                time.sleep(60)
            if not serving.free.acquire(blocking=False):
                self._send(429, b'{"error": {"message": "too many at once"}}')
                return
            paths: dict[str, Callable[[], dict[str, Any]]] = {
                "/v1/completions": lambda: serving.completion(body, chat=False),
                "/v1/chat/completions": lambda: serving.completion(body, chat=True),
                "/generate": lambda: serving.generated(body),
            }
            try:
                self._send(200, json.dumps(paths[self.path]()).encode())
            except ValueError as error:
                self._send(400, json.dumps({"error": {"message": str(error)}}).encode())
            finally:
                serving.free.release()

        def _refused(self) -> bool:
            key = serving.wrong.key
            if key is None or self.headers.get("Authorization") == f"Bearer {key}":
                return False
            self._send(401, json.dumps({"error": f"not {self.headers.get('Authorization')}"}).encode())
            return True

        def _send(self, status: int, content: bytes, kind: str = "application/json") -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args: Any) -> None:
            pass

    return Handler
