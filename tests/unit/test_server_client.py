"""Servers that are down, hang, break off, lie or want a key: each is a sentence, never a traceback, and no key is ever shown."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from eyas.cli.main import main
from eyas.doctor.server import client as client_module
from eyas.doctor.server.client import KEY_VARIABLE, Client, ServerError, base_address
from eyas.doctor.server.counters import Counters, between, counters_in
from eyas.doctor.server.protocol import Server
from eyas.errors import UserError

Answer = Callable[[str], bytes]


class Raw:
    """A socket that answers each connection with bytes made of its request; None of them need be HTTP."""

    def __init__(self, answer: Answer, then_wait: float = 0.0) -> None:
        self._answer, self._wait = answer, then_wait
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.asked: list[str] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._one, args=(connection,), daemon=True).start()

    def _one(self, connection: socket.socket) -> None:
        with connection:
            request = connection.recv(1 << 16).decode("latin-1")
            length = re.search(r"content-length: (\d+)", request, flags=re.IGNORECASE)
            while length and len(request.partition("\r\n\r\n")[2]) < int(length[1]):  # the body comes in a packet of its own
                request += connection.recv(1 << 16).decode("latin-1")
            self.asked.append(request)
            connection.sendall(self._answer(request))
            time.sleep(self._wait)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def raw() -> Iterator[Callable[..., Raw]]:
    made: list[Raw] = []

    def start(answer: Answer, then_wait: float = 0.0) -> Raw:
        made.append(Raw(answer, then_wait))
        return made[-1]

    yield start
    for server in made:
        server.close()


def http(body: bytes, status: str = "200 OK", length: int | None = None, **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body) if length is None else length}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


MODELS = json.dumps({"data": [{"id": "m", "owned_by": "someone"}]}).encode()
BAD = {
    "a page of HTML": (lambda request: http(b"<html>Welcome</html>"), "no OpenAI-compatible server"),
    "nothing at all": (lambda request: http(b""), "no OpenAI-compatible server"),
    "other JSON": (lambda request: http(b'{"data": []}'), "names no model"),
    "a list": (lambda request: http(b"[1, 2]"), "names no model"),
    "nested too deep": (lambda request: http(b"[" * 100_000), "no OpenAI-compatible server"),
    "a refusal": (lambda request: http(b"{}", "401 Unauthorized"), "refuses access"),
    "a missing page": (lambda request: http(b"gone", "404 Not Found"), "failed"),
    "an error of its own": (lambda request: http(b'{"error": {"message": "out of memory"}}', "500 Oh"), "out of memory"),
    "another address": (lambda request: http(b"", "307 Over", Location="https://elsewhere/v1/models"), "leads elsewhere"),
    "half an answer": (lambda request: http(MODELS[:20], length=500), "broke off"),
    "no HTTP": (lambda request: b"SSH-2.0-OpenSSH_9.6\r\n", "no server answers|broke off"),
    "a closed door": (lambda request: b"", "broke off|no server answers"),
    "half a chunk": (lambda request: b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n40\r\nabc", "broke off"),
    "broken compression": (lambda request: http(b"no gzip", **{"Content-Encoding": "gzip"}), "broke off|cannot be asked"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_server_is_said_in_words(name, raw, capsys):
    answer, words = BAD[name]
    server = raw(answer)
    with pytest.raises(ServerError, match=words) as caught:
        Server(Client(server.address), [])
    assert caught.value.got is not None or caught.value.remedy is not None
    with pytest.raises(SystemExit) as stopped:
        main(["doctor", "--server", server.address])
    assert stopped.value.code == 2
    output = capsys.readouterr()
    assert "Traceback" not in output.err + output.out


def test_a_server_that_is_down_is_said_in_words(capsys):
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    for option in ("--server", "--metrics"):
        with pytest.raises(SystemExit) as stopped:
            main(["doctor", option, f"http://127.0.0.1:{port}"])
        assert stopped.value.code == 2
        assert "no server answers at" in capsys.readouterr().err


def test_a_server_that_hangs_is_left(raw, monkeypatch):
    monkeypatch.setattr(client_module, "_LOOK_SECONDS", 0.3)
    begun = time.monotonic()
    with pytest.raises(ServerError, match="did not finish"):
        Client(raw(lambda request: b"", then_wait=20.0).address).get_text("/metrics")
    with pytest.raises(ServerError, match="did not finish"):
        Client(raw(lambda request: http(b"begun", length=10), then_wait=20.0).address).get_text("/metrics")
    assert time.monotonic() - begun < 15


@pytest.mark.parametrize("answer", [http(b"x" * 3, length=1 << 20), b"HTTP/1.1 200 OK\r\nX-Slow: "], ids=["body", "header"])
def test_a_server_that_dribbles_is_left(raw, monkeypatch, answer):
    """Byte for byte, no single read ever takes long."""
    monkeypatch.setattr(client_module, "_CHUNK", 1)
    monkeypatch.setattr(client_module, "_CONNECT_SECONDS", 0.5)
    server = raw(lambda request: answer)
    server._one = lambda connection: _dribble(connection, answer)  # type: ignore[method-assign]
    with pytest.raises(ServerError, match="did not finish"):
        Client(server.address, seconds=0.5).post("/v1/completions", {})


def _dribble(connection: socket.socket, beginning: bytes) -> None:
    with connection:
        connection.recv(1 << 16)
        connection.sendall(beginning)
        for _ in range(100):
            time.sleep(0.1)
            try:
                connection.sendall(b"x")
            except OSError:
                return


@pytest.mark.parametrize("status", ["429 Too Many Requests", "503 Service Unavailable"])
def test_a_busy_server_is_asked_again_and_not_for_ever(raw, monkeypatch, status):
    monkeypatch.setattr(client_module, "_PAUSES", (0.01, 0.01, 0.02))
    refusals = [http(b"later", status, **{"Retry-After": "3600"})] * 2
    server = raw(lambda request: refusals.pop() if refusals else http(b"ok"))
    assert Client(server.address).get_text("/metrics") == "ok"
    assert len(server.asked) == 3
    server = raw(lambda request: http(b"later", status, **{"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}))
    with pytest.raises(ServerError, match=r"too busy.*\n.*later"):
        Client(server.address).get_text("/metrics")
    assert len(server.asked) == 4


def test_an_endless_page_is_left(raw, monkeypatch):
    monkeypatch.setattr(client_module, "_MAX_BYTES", 1000)
    with pytest.raises(ServerError, match="more than"):
        Client(raw(lambda request: http(b"x" * 5000)).address).get_text("/metrics")


def test_the_key_is_sent_and_never_shown(raw, monkeypatch, capsys):
    monkeypatch.setenv(KEY_VARIABLE, "sk-very-secret")
    server = raw(lambda request: http(request.encode("latin-1"), "500 Oh"))
    with pytest.raises(SystemExit):
        main(["doctor", "--server", server.address])
    assert "Bearer sk-very-secret" in server.asked[0]
    output = capsys.readouterr()
    assert "sk-very-secret" not in output.err + output.out
    with pytest.raises(ServerError, match="refuses access") as caught:
        Client(raw(lambda request: http(b"{}", "403 No")).address).get_text("/metrics")
    assert "right one" in str(caught.value)
    monkeypatch.delenv(KEY_VARIABLE)
    with pytest.raises(ServerError, match=KEY_VARIABLE):
        Client(raw(lambda request: http(b"{}", "401 No")).address).get_text("/metrics")


def test_a_model_that_is_named_and_not_there(raw, capsys):
    missing = http(b'{"error": {"message": "The model m does not exist."}}', "404 Not Found")
    server = raw(lambda request: http(MODELS) if "/v1/models" in request.split("\r\n")[0] else missing)
    with pytest.raises(SystemExit) as stopped:
        main(["doctor", "--server", server.address])
    assert stopped.value.code == 2
    assert "The model m does not exist" in capsys.readouterr().err


@pytest.mark.parametrize(("target", "asked"), [("/models/two", "two"), ("org/3", "three"), ("/models/four", "one"), (None, "one")])
def test_of_several_models_the_target_is_asked(raw, target, asked):
    models = [{"id": "one"}, {"id": "two"}, {"id": "three", "root": "org/3"}]
    server, notes = raw(lambda request: http(json.dumps({"data": models}).encode())), list[str]()
    assert Server(Client(server.address), notes, target).about.model == asked
    assert notes == [f"the server names 3 models, of which {asked} is asked"]


def test_only_the_fields_that_a_server_refuses_are_left_out(raw):
    choice = {"choices": [{"text": "x", "finish_reason": "length", "token_ids": [5]}]}

    def answer(request: str) -> bytes:
        if request.startswith("GET"):
            return http(MODELS)
        refused = '"cache_salt"' in request
        return http(b'{"error": {"message": "no salt"}}', "400 Bad") if refused else http(json.dumps(choice).encode())

    server, notes = raw(answer), list[str]()
    asked = Server(Client(server.address), notes)
    assert [asked.complete([1, 2], 4, "salt").tokens for _ in range(2)] == [(5,), (5,)]
    assert notes == ["the server does not take cache_salt (HTTP 400: no salt)"]
    bodies = [request for request in server.asked if request.startswith("POST")]
    assert sum('"cache_salt"' in body for body in bodies) == 2  # with all, and by itself
    assert '"return_token_ids"' in bodies[-1]


def test_no_key_is_taken_from_elsewhere(raw, monkeypatch, tmp_path):
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    server = raw(lambda request: http(b"ok"))
    Client(server.address).get_text("/metrics")
    assert "authorization" not in server.asked[0].lower()


@pytest.mark.parametrize(
    ("text", "base"),
    [
        ("127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://host:8000/", "http://host:8000"),
        ("https://host/v1", "https://host"),
        ("https://host/team/v1/", "https://host/team"),
        ("http://[::1]:8000", "http://[::1]:8000"),
    ],
)
def test_addresses_as_people_write_them(text, base):
    assert base_address(text) == base


@pytest.mark.parametrize(
    "text", ["ftp://host", "http://", "http://user:pass@host", "http://host?key=1", "http://host:port", "", "http://[::1"]
)
def test_what_is_no_address_is_refused(text):
    with pytest.raises(UserError):
        base_address(text)


PAGE = """\
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 100.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} 20.0
vllm:spec_decode_num_drafts_total{engine="0",model_name="other"} 7.0
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 360.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 90.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 60.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="2"} 10.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 20.0
vllm:generation_tokens_total{engine="0",model_name="m"} 210.0
"""


def test_counters_of_one_model_are_added_up():
    found = counters_in(PAGE, "m")
    assert found == Counters(rounds=120, proposed=360, accepted=90, positions=(60, 20, 10), generated=210, speculative=True)
    assert counters_in("# nothing\n") == Counters()
    with pytest.raises(UserError, match="no Prometheus text"):
        counters_in("vllm:generation_tokens_total{x 1\n")


def test_what_happened_between_two_moments():
    before = Counters(rounds=10, proposed=30, accepted=5, positions=(4, 1), generated=40, speculative=True)
    after = Counters(rounds=110, proposed=330, accepted=95, positions=(64, 21, 10), generated=230, speculative=True)
    found = between(before, after, 190, "here")
    assert (found.rounds, found.proposed, found.accepted, found.position_counts) == (100, 300, 90, (60, 20, 10))
    assert found.num_draft_tokens == 3


def test_tokens_that_are_counted_without_drafts_are_no_rounds():
    found = between(Counters(generated=40), Counters(generated=230), 190, "here")
    assert (found.rounds, found.proposed, found.accepted, found.num_draft_tokens) == (0, 0, 0, None)


@pytest.mark.parametrize(
    ("after", "words"),
    [
        (Counters(generated=40), "no counters of speculative"),
        (Counters(rounds=5, generated=230, speculative=True), "restarted"),
        (Counters(rounds=110, generated=330, speculative=True), "what others asked"),
        (Counters(rounds=110, generated=140, speculative=True), "do not cover"),
    ],
)
def test_counters_that_say_nothing_of_us_are_not_read(after, words):
    assert words in between(Counters(rounds=10, generated=40, speculative=True), after, 190, "here")
