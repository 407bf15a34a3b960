"""HTTP to a server that may be down, busy, hang, break off, or be something else: whatever happens is a UserError in words.

The API key comes from the environment only, goes to this one server, and is cut out of everything that is shown.
"""

from __future__ import annotations

import json
import os
import threading
import time
from queue import Empty, SimpleQueue
from typing import Any
from urllib.parse import urlsplit

import requests
from requests.auth import AuthBase

from eyas.errors import UserError
from eyas.files import JSON_ERRORS

KEY_VARIABLE = "EYAS_API_KEY"
_CONNECT_SECONDS = 10.0
_LOOK_SECONDS = 30.0  # for what a server knows without computing: its models, its counters
_MAX_BYTES = 64 << 20
_CHUNK = 1 << 16
_SHOWN = 200  # characters of a server's words
_BUSY = (429, 503)
_PAUSES = (1.0, 3.0, 9.0)  # seconds before a busy server is asked again, and the longest that its Retry-After is heeded


class ServerError(UserError):
    """`status` is the HTTP status, None if no answer came. `retry_after`: seconds that the server asks to wait, 0 if it does not."""

    def __init__(
        self, what: str, *, status: int | None = None, got: object = None, remedy: str | None = None, retry_after: float = 0.0
    ) -> None:
        super().__init__(what, got=got, remedy=remedy)
        self.status, self.retry_after = status, retry_after


class _Bearer(AuthBase):
    """Also without a key: an auth of our own keeps `requests` from looking for one in ~/.netrc."""

    def __init__(self, key: str | None) -> None:
        self._key = key

    def __call__(self, request: Any) -> Any:
        if self._key:
            request.headers["Authorization"] = f"Bearer {self._key}"
        return request


def base_address(text: str, option: str = "--server") -> str:
    """scheme://host:port and path, without a /v1 at its end. Raises UserError for what is no http address, or holds a password."""
    whole = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(whole)
        host, _ = parts.hostname, parts.port  # a port that is no number raises
    except ValueError as error:
        raise UserError(f"{option} is no address", got=text, allowed="http://HOST:PORT") from error
    if parts.username is not None or parts.password is not None:
        raise UserError(
            f"the address of {option} holds a name or password", remedy=f"leave them out, and put the key into the variable {KEY_VARIABLE}"
        )
    if parts.scheme not in ("http", "https") or not host:
        raise UserError(f"{option} is no address", got=text, allowed="http://HOST:PORT or https://HOST")
    if parts.query or parts.fragment:
        raise UserError(f"the address of {option} holds a query", got=parts.query or parts.fragment, allowed="http://HOST:PORT")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1')}"


class Client:
    """Args:
    seconds: the longest that one request may take from its first byte to its last.
    """

    def __init__(self, address: str, seconds: float = 600.0, option: str = "--server") -> None:
        self.base = base_address(address, option)
        self._seconds = seconds
        self._key = os.environ.get(KEY_VARIABLE) or None

    def get_text(self, path: str) -> str:
        """Raises ServerError."""
        return self._patiently("GET", path, None, _LOOK_SECONDS).decode("utf-8", errors="replace")

    def get_json(self, path: str) -> Any:
        """Raises ServerError, also for an answer that is no JSON."""
        return self._json(path, self._patiently("GET", path, None, _LOOK_SECONDS))

    def post(self, path: str, body: dict[str, Any], seconds: float | None = None) -> Any:
        """`seconds`: a shorter time than the client's own. Raises ServerError, also for an answer that is no JSON."""
        return self._json(path, self._patiently("POST", path, body, seconds or self._seconds))

    @property
    def has_path(self) -> bool:
        return urlsplit(self.base).path != ""

    @property
    def sends_key_in_clear(self) -> bool:
        parts = urlsplit(self.base)
        return self._key is not None and parts.scheme == "http" and parts.hostname not in ("localhost", "127.0.0.1", "::1")

    # -- one request -------------------------------------------------------------------------------------------

    def _patiently(self, method: str, path: str, body: dict[str, Any] | None, seconds: float) -> bytes:
        """A server that says that it is too busy is asked again a few times: many at once may run into a limit of requests."""
        for pause in _PAUSES:
            try:
                return self._ask(method, path, body, seconds)
            except ServerError as error:
                if error.status not in _BUSY:
                    raise
                time.sleep(min(max(pause, error.retry_after), _PAUSES[-1]))
        return self._ask(method, path, body, seconds)

    def _ask(self, method: str, path: str, body: dict[str, Any] | None, seconds: float) -> bytes:
        """In a thread of its own, which is left behind if it does not end: name resolution and headers heed no timeout as a whole."""
        done: SimpleQueue[bytes | Exception] = SimpleQueue()

        def ask() -> None:
            try:
                done.put(self._request(method, path, body, seconds))
            except Exception as error:  # raised again by whoever waits
                done.put(error)

        threading.Thread(target=ask, daemon=True).start()
        try:
            found = done.get(timeout=seconds + _CONNECT_SECONDS)
        except Empty:
            raise self._hung(self.base + path, seconds) from None
        if isinstance(found, Exception):
            raise found
        return found

    def _request(self, method: str, path: str, body: dict[str, Any] | None, seconds: float) -> bytes:
        """A session a request: a connection that the server has closed meanwhile is not met again, and threads share nothing."""
        url, begun = self.base + path, time.monotonic()
        try:
            with (
                requests.Session() as session,
                session.request(
                    method,
                    url,
                    json=body,
                    auth=_Bearer(self._key),
                    timeout=(_CONNECT_SECONDS, seconds),
                    stream=True,
                    allow_redirects=False,
                ) as response,
            ):
                content = self._read(response, url, begun, seconds)
                self._check(response, url, content)
                return content
        except requests.exceptions.ConnectTimeout as error:
            raise ServerError(f"no server answers at {self.base}", got=f"nothing in {_CONNECT_SECONDS:g} s", remedy=_START) from error
        except requests.exceptions.Timeout as error:
            raise self._hung(url, seconds) from error
        except requests.exceptions.SSLError as error:
            raise ServerError(f"no secure connection to {self.base}", got=self._safe(str(error)), remedy="http:// or https://?") from error
        except (requests.exceptions.ChunkedEncodingError, requests.exceptions.ContentDecodingError) as error:
            raise self._broken(url, error) from error
        except requests.exceptions.ConnectionError as error:
            if "timed out" in str(error).lower():  # in the middle of a body, urllib3's timeout comes as this
                raise self._hung(url, seconds) from error
            if "aborted" in str(error).lower():
                raise self._broken(url, error) from error
            raise ServerError(f"no server answers at {self.base}", got=_reason(error), remedy=_START) from error
        except requests.exceptions.RequestException as error:
            raise ServerError(f"{url} cannot be asked", got=self._safe(str(error))) from error

    def _read(self, response: requests.Response, url: str, begun: float, seconds: float) -> bytes:
        """A server that sends a byte now and then never runs into a timeout of its own, so the clock is looked at here."""
        held, size = [], 0
        for chunk in response.iter_content(_CHUNK):
            held.append(chunk)
            size += len(chunk)
            if size > _MAX_BYTES:
                raise ServerError(f"{url} gives more than {_MAX_BYTES >> 20} MB", remedy="is it the right address?")
            if time.monotonic() - begun > seconds:
                raise self._hung(url, seconds)
        return b"".join(held)

    def _check(self, response: requests.Response, url: str, content: bytes) -> None:
        status = response.status_code
        if status in (401, 403):
            remedy = f"put the server's key into the environment variable {KEY_VARIABLE}"
            remedy = f"is the key in {KEY_VARIABLE} the right one?" if self._key else remedy
            raise ServerError(f"{url} refuses access", status=status, got=f"HTTP {status}", remedy=remedy)
        if 300 <= status < 400:
            where = self._safe(response.headers.get("location", "elsewhere"))
            raise ServerError(f"{url} leads elsewhere", status=status, got=f"HTTP {status} to {where}", remedy="give that address")
        if status in _BUSY:
            wait = _seconds(response.headers.get("retry-after", ""))
            remedy = f"it was asked {len(_PAUSES) + 1} times: wait until it is up and has less to do, or raise its limit of requests"
            got = f"HTTP {status}: {self._safe(_words(content))}"
            raise ServerError(f"{url} is too busy", status=status, got=got, remedy=remedy, retry_after=wait)
        if status >= 400:
            raise ServerError(f"{url} failed", status=status, got=f"HTTP {status}: {self._safe(_words(content))}")

    def _json(self, path: str, content: bytes) -> Any:
        try:
            return json.loads(content)
        except JSON_ERRORS as error:
            raise ServerError(
                f"what answers at {self.base}{path} is no OpenAI-compatible server",
                got=self._safe(_words(content)) or "an empty answer",
                remedy="give the address that vllm serve or sglang.launch_server prints",
            ) from error

    def _hung(self, url: str, seconds: float) -> ServerError:
        return ServerError(
            f"{url} did not finish its answer", got=f"nothing whole in {seconds:g} s", remedy="is the server overloaded or stuck?"
        )

    def _broken(self, url: str, error: Exception) -> ServerError:
        return ServerError(
            f"{url} broke off in the middle of its answer", got=_reason(error), remedy="look at the server's log: it may have crashed"
        )

    def _safe(self, text: str) -> str:
        text = text.replace(self._key, "***") if self._key else text
        return " ".join(text.split())[:_SHOWN]


_START = "start it, or check host and port"


def _reason(error: Exception) -> str:
    """The innermost cause: what wraps it repeats the address several times."""
    cause: BaseException = error
    while (inner := cause.__cause__ or cause.__context__) is not None:
        cause = inner
    return f"{type(cause).__name__}: {cause}"[:_SHOWN]


def _seconds(text: str) -> float:
    """Of a Retry-After, which may be a date as well: that is not heeded."""
    return float(text) if text.strip().isdecimal() else 0.0


def _words(content: bytes) -> str:
    """What a server says of an error: the message of OpenAI's form, else the beginning."""
    text = content[:4096].decode("utf-8", errors="replace")
    try:
        value = json.loads(content)
    except JSON_ERRORS:
        return text
    for key in ("error", "message", "detail"):
        if isinstance(value, dict) and key in value:
            value = value[key]
    return value if isinstance(value, str) else text
