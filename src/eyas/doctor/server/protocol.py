"""What is asked of a server and what comes back, in one form for every engine.

Prompts go as token ids, so that no template or tokenizer of the server's stands between, and every sampling default that
a server may have been given is overridden: what comes back must be the target's own greedy choice.

    any server          POST /v1/completions with ids; POST /v1/chat/completions where there is no tokenizer to make ids
    vLLM                gives the ids of its answer (return_token_ids, since 0.10.2), takes cache_salt; with
                        --per-request-spec-decode-metrics summary (0.32) it counts the rounds of each request, too
    SGLang              POST /generate: ids both ways, and the rounds of each request in meta_info

Read in the sources of vLLM 0.32 and SGLang 0.5.23.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from eyas.doctor.json_figures import figures_in
from eyas.doctor.server.client import Client, ServerError
from eyas.doctor.server_figures import ServerFigures
from eyas.engines.catalog import parse_engine
from eyas.errors import UserError

_GREEDY = {"temperature": 0.0, "top_p": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
_WHOLE = {"top_k": -1, "min_p": 0.0}  # nothing is cut off what is sampled from
_REFUSED = (400, 422)  # a request that the server understood, with a field or a value that it does not take
_ABSENT = (404, 405)
_GREETING_SECONDS = 120.0  # for one token: the first request may compile kernels or wait behind others


@dataclass(frozen=True)
class About:
    """What a server says of itself; None where it says nothing. `num_draft_tokens` is K, `max_length` in tokens.

    `speculates`: False if it says that it was started without speculative decoding.
    """

    model: str
    engine: str | None = None
    version: str | None = None
    max_length: int | None = None
    num_draft_tokens: int | None = None
    speculates: bool | None = None

    @property
    def name(self) -> str:
        return f"{self.engine or 'a server of unknown make'} {self.version or ''}".strip()

    @property
    def judged(self) -> str | None:
        """Engine and version as `--engine` takes them; None if the server does not say, or says a version of no release."""
        if self.engine is None or self.version is None:
            return None
        try:
            parse_engine(f"{self.engine}=={self.version}")
        except UserError:
            return None
        return f"{self.engine}=={self.version}"


@dataclass(frozen=True)
class Reply:
    """One answer. Ids and counts are None where the server gives none; `rounds` where it counts each request's."""

    text: str
    tokens: tuple[int, ...] | None = None
    stopped: bool = False
    prompt_tokens: tuple[int, ...] | None = None
    num_prompt_tokens: int | None = None
    num_cached_tokens: int | None = None
    rounds: ServerFigures | None = None

    @property
    def said(self) -> tuple[int, ...] | str:
        """What two answers are compared by."""
        return self.text if self.tokens is None else self.tokens


class Server:
    """Asks one server. What it does not take is added to `notes`. `target`: which of several models to ask for, by name or folder."""

    def __init__(self, client: Client, notes: list[str], target: str | None = None) -> None:
        self.client, self.notes = client, notes
        self.about = _about(client, notes, target)
        self._taken: dict[str, tuple[str, ...]] = {}  # by path: the fields beyond OpenAI's that it takes, once one was refused
        if client.sends_key_in_clear:
            self.notes.append("the API key goes to the server unencrypted: use https")

    def greet(self) -> None:
        """Ask for one token: what cannot answer at all is known before anything is computed. Raises ServerError."""
        body = {"model": self.about.model, "max_tokens": 1, **_GREEDY}
        try:
            answer = self.client.post("/v1/completions", {**body, "prompt": "Hello"}, _GREETING_SECONDS)
        except ServerError as error:
            if error.status not in _ABSENT:
                raise
            messages = [{"role": "user", "content": "Hello"}]
            answer = self.client.post("/v1/chat/completions", {**body, "messages": messages}, _GREETING_SECONDS)
        _completion(answer)

    def complete(self, prompt: Sequence[int], num_tokens: int, salt: str, seconds: float | None = None, temperature: float = 0.0) -> Reply:
        """Continuation of token ids, greedy or sampled. `salt`: requests of another salt share no cached prefix.

        `seconds`: how long to wait for it, at most. Raises ServerError.
        """
        chosen = _GREEDY | {"temperature": temperature}
        if self.about.engine == "sglang":
            sampling = {**chosen, **_WHOLE, "max_new_tokens": num_tokens, "repetition_penalty": 1.0}
            question = {"input_ids": list(prompt), "sampling_params": sampling, "extra_key": salt}
            return _generated(self.client.post("/generate", question, seconds))
        body = {"model": self.about.model, "prompt": list(prompt), "max_tokens": num_tokens, **chosen}
        return _completion(self._post("/v1/completions", body, salt, seconds))

    def chat(self, messages: Sequence[Mapping[str, Any]], num_tokens: int, salt: str, seconds: float | None = None) -> Reply:
        """Greedy answer to a chat that the server renders itself, in `seconds` at most. Raises ServerError."""
        body = {"model": self.about.model, "messages": [dict(message) for message in messages], "max_tokens": num_tokens, **_GREEDY}
        return _completion(self._post("/v1/chat/completions", body, salt, seconds))

    def _post(self, path: str, body: dict[str, Any], salt: str, seconds: float | None) -> Any:
        """With fields beyond OpenAI's, but for those that the server refuses."""
        extras = {"return_token_ids": True, "cache_salt": salt, "repetition_penalty": 1.0, **(_WHOLE if body["temperature"] else {})}
        try:
            return self.client.post(path, body | {name: extras[name] for name in self._taken.get(path, tuple(extras))}, seconds)
        except ServerError as error:
            if error.status not in _REFUSED or path in self._taken:
                raise
            taken = self._find_taken(path, body, extras)
            lost = [name for name in extras if name not in taken]
            by_text = "; without ids it is compared by text" if "return_token_ids" in lost else ""
            self.notes.append(f"the server does not take {', '.join(lost)} ({error.got}){by_text}")
            self._taken[path] = taken
        return self.client.post(path, body | {name: extras[name] for name in taken}, seconds)

    def _find_taken(self, path: str, body: Mapping[str, Any], extras: Mapping[str, Any]) -> tuple[str, ...]:
        """Each field by itself. Raises ServerError if the fault lies elsewhere."""
        short = {**body, "max_tokens": 1}
        self.client.post(path, short)
        taken = []
        for name, value in extras.items():
            try:
                self.client.post(path, {**short, name: value})
            except ServerError as error:
                if error.status not in _REFUSED:
                    raise
            else:
                taken.append(name)
        return tuple(taken)


def _about(client: Client, notes: list[str], target: str | None) -> About:
    """Raises ServerError for what is no OpenAI-compatible server."""
    listed = client.get_json("/v1/models")
    models = listed.get("data") if isinstance(listed, dict) else None
    served = [item for item in models if isinstance(item, dict) and isinstance(item.get("id"), str)] if isinstance(models, list) else []
    if not served:
        raise ServerError(f"{client.base}/v1/models names no model", got=str(listed)[:160], remedy="is it an OpenAI-compatible server?")
    names = set() if target is None else {target, target.rstrip("/").rpartition("/")[2]}
    model = next((item for item in served if names & {item["id"], str(item.get("root"))}), served[0])
    if len(served) > 1:
        notes.append(f"the server names {len(served)} models, of which {model['id']} is asked")
    engine = str(model.get("owned_by") or "").lower()
    about = About(str(model["id"]), engine if engine in ("vllm", "sglang") else None, max_length=_count(model.get("max_model_len")))
    if about.engine == "vllm":
        return replace(about, version=_text(_optional(client, "/version").get("version")))
    if about.engine == "sglang":
        info = _optional(client, "/server_info") or _optional(client, "/get_server_info")
        drafted = _count(info.get("speculative_num_draft_tokens"))
        speculates = info["speculative_algorithm"] is not None if "speculative_algorithm" in info else None
        drafts = drafted - 1 if drafted and drafted > 1 else None
        return replace(about, version=_text(info.get("version")), num_draft_tokens=drafts, speculates=speculates)
    return about


def _optional(client: Client, path: str) -> Mapping[str, Any]:
    """What a server need not have; nothing depends on it but what is said of the server."""
    try:
        value = client.get_json(path)
    except ServerError:
        return {}
    return value if isinstance(value, dict) else {}


def _completion(value: Any) -> Reply:
    choices = value.get("choices") if isinstance(value, dict) else None
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else None
    if choice is None:
        raise ServerError("the server's answer holds no choice", got=str(value)[:160])
    message = choice.get("message")
    text = message.get("content") if isinstance(message, dict) else choice.get("text")
    usage = value.get("usage") if isinstance(value.get("usage"), dict) else {}
    details = usage.get("prompt_tokens_details")
    metrics = value.get("metrics")
    counted = metrics.get("speculative_decoding") if isinstance(metrics, dict) else None
    figures = figures_in(counted, "the server") if isinstance(counted, dict) else []
    return Reply(
        text=text if isinstance(text, str) else "",
        tokens=_ids(choice.get("token_ids")),
        stopped=choice.get("finish_reason") == "stop",
        prompt_tokens=_ids(choice.get("prompt_token_ids")) or _ids(value.get("prompt_token_ids")),
        num_prompt_tokens=_count(usage.get("prompt_tokens")),
        num_cached_tokens=_count(details.get("cached_tokens")) if isinstance(details, dict) else None,
        rounds=figures[0] if figures else None,
    )


def _generated(value: Any) -> Reply:
    meta = value.get("meta_info") if isinstance(value, dict) else None
    if not isinstance(meta, dict):
        raise ServerError("the server's answer holds no meta_info", got=str(value)[:160])
    reason = meta.get("finish_reason")
    figures = figures_in({"meta_info": meta}, "the server") if meta.get("spec_verify_ct") else []
    return Reply(
        text=str(value.get("text") or ""),
        tokens=_ids(value.get("output_ids")),
        stopped=isinstance(reason, dict) and reason.get("type") == "stop",
        num_prompt_tokens=_count(meta.get("prompt_tokens")),
        num_cached_tokens=_count(meta.get("cached_tokens")),
        rounds=figures[0] if figures else None,
    )


def _ids(value: Any) -> tuple[int, ...] | None:
    whole = isinstance(value, list) and all(isinstance(one, int) and not isinstance(one, bool) and one >= 0 for one in value)
    return tuple(value) if whole else None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
