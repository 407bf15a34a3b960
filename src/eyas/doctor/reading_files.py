"""Reading a server's figures of acceptance from files: Prometheus text, JSON, a benchmark's table, log lines."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from eyas.doctor.json_figures import figures_in
from eyas.doctor.log_trends import last_run
from eyas.doctor.readings import Reading, read
from eyas.doctor.server_figures import ServerFigures, drafts_only_in
from eyas.doctor.table_figures import table_figures
from eyas.errors import UserError
from eyas.files import JSON_ERRORS

_MAX_BYTES = 256 << 20
_VLLM, _SGLANG = "vllm:spec_decode_", "sglang:spec_"
_NUMBER = r"(-?[\d.]+(?:e[+-]?\d+)?|nan|inf)"
_VLLM_LINE = re.compile(r"SpecDecoding metrics:(.*)")
_SGLANG_LINE = re.compile(rf"accept len: {_NUMBER}(?:, accept rate: {_NUMBER})?")
_KNOWN_K = (
    (re.compile(r"speculative[_-]num[_-]draft[_-]tokens['\"]?[=: ]+(\d+)"), 1),
    (re.compile(r"num_speculative_tokens['\"]?[=: ]+(\d+)"), 0),
)


@dataclass(frozen=True)
class Told:
    """What is known beside the file. `num_draft_tokens` is K, drafts alone."""

    engine: str | None = None
    version: str | None = None
    num_draft_tokens: int | None = None


@dataclass(frozen=True)
class LogReading:
    """All lines of a log's last run taken together, and the acceptance length line by line, in order. `runs`: how many runs have any."""

    reading: Reading
    lengths: tuple[float, ...]
    runs: int


def read_metrics(path: Path, told: Told) -> tuple[Reading, ...]:
    """Prometheus text (as GET /metrics gives it) or JSON: one reading for each server or group of figures in it.

    Raises UserError if the file cannot be read or holds no figure of speculative decoding.
    """
    return readings_of(read_text(path), str(path), told)


def readings_of(text: str, where: str, told: Told) -> tuple[Reading, ...]:
    """The same of a text that came from `where`."""
    found = _json_figures(text, where, told) if text.lstrip()[:1] in ("{", "[") else table_figures(text, where, told.num_draft_tokens)
    found = found or _prometheus_figures(text, where, told)
    if not found:
        raise UserError(
            f"{where} holds no figures of speculative decoding",
            got=_named(text),
            allowed="vllm:spec_decode_*, sglang:spec_*, or JSON with such counts",
            remedy="save what GET /metrics gives after some requests, with speculative decoding on",
        )
    return tuple(read(figures) for figures in found)


def read_log(path: Path, told: Told) -> LogReading:
    """The lines in which vLLM and SGLang log their acceptance from time to time, since the server was started for the last time.

    Raises UserError if the file cannot be read or has no such line.
    """
    text, runs = last_run(read_text(path))
    told = told if told.num_draft_tokens else replace(told, num_draft_tokens=_k_in(text))
    lines = text.splitlines()
    vllm = [_vllm_figures(match[1], f"{path}", told) for line in lines if (match := _VLLM_LINE.search(line))]
    sglang = [_sglang_line(match, f"{path}", told) for line in lines if (match := _SGLANG_LINE.search(line))]
    found = [figures for figures in (vllm or sglang) if figures is not None]
    if not found:
        raise UserError(
            f"{path} holds no line on speculative decoding",
            allowed="lines with 'SpecDecoding metrics:' (vLLM) or 'accept len:' (SGLang)",
            remedy="log at INFO, and let the server decode for half a minute",
        )
    lengths = tuple(figures.acceptance_length for figures in found if figures.acceptance_length is not None)
    odd = next((figures for figures in found if read(figures).oddities), None)
    return LogReading(read(odd or together(found)), lengths, runs)


# -- Prometheus ------------------------------------------------------------------------------------------------


def _prometheus_figures(text: str, path: str, told: Told) -> list[ServerFigures]:
    from prometheus_client.parser import text_string_to_metric_families

    servers: dict[tuple[str, tuple[tuple[str, str], ...]], dict[str, Any]] = {}
    try:
        for family in text_string_to_metric_families(text if text.endswith("\n") else text + "\n"):
            for sample in family.samples:
                engine = next((name for name, start in (("vllm", _VLLM), ("sglang", _SGLANG)) if sample.name.startswith(start)), None)
                if engine is None or sample.name.endswith("_created"):
                    continue
                kept = {key: value for key, value in sample.labels.items() if key not in ("position", "engine")}
                values = servers.setdefault((engine, tuple(sorted(kept.items()))), {})
                _keep(values, sample.name.removesuffix("_total"), sample.labels.get("position"), float(sample.value))
    except (ValueError, KeyError, IndexError) as error:
        raise UserError(f"{path} is no Prometheus text", got=str(error)[:160], remedy="save what GET /metrics gives, unchanged") from error
    found = []
    for (engine, labels), values in servers.items():
        where = path + (f" ({labels[0][0]}={labels[0][1]})" if len(servers) > 1 and labels else "")
        found.append(_of_vllm(values, where, told) if engine == "vllm" else _of_sglang(values, where, told))
    return [figures for figures in found if figures.rounds or figures.acceptance_length or figures.proposed]


def _named(text: str) -> str | None:
    """What a text names that sounds like speculation: figures of an engine or version that are called otherwise, or not counted yet."""
    names = dict.fromkeys(re.findall(r"[\w:]*(?:spec_|accept|draft)\w*", text))
    return ", ".join(list(names)[:8]) or None


def _keep(values: dict[str, Any], name: str, position: str | None, value: float) -> None:
    """Counts of several engine processes behind one server are added up."""
    if position is None:
        values[name] = values.get(name, 0.0) + value
    else:
        places = values.setdefault("positions", {})
        places[int(position)] = places.get(int(position), 0.0) + value


def _of_vllm(values: Mapping[str, Any], where: str, told: Told) -> ServerFigures:
    """Versions before 0.9 count no rounds: these follow from the proposed tokens if K is told."""
    places = values.get("positions", {})
    counts = tuple(places.get(place, 0.0) for place in range(max(places) + 1)) if places else ()
    return ServerFigures(
        "vllm",
        where,
        num_draft_tokens=len(counts) or told.num_draft_tokens,
        rounds=values.get(f"{_VLLM}num_drafts"),
        proposed=values.get(f"{_VLLM}num_draft_tokens"),
        accepted=values.get(f"{_VLLM}num_accepted_tokens"),
        position_counts=counts,
    )


def _of_sglang(values: Mapping[str, Any], where: str, told: Told) -> ServerFigures:
    drafted = values.get(f"{_SGLANG}num_draft_tokens")
    return ServerFigures(
        "sglang",
        where,
        num_draft_tokens=told.num_draft_tokens or (int(drafted) - 1 if drafted else None),
        acceptance_length=values.get(f"{_SGLANG}accept_length") or None,  # 0 until the first round
        acceptance_rate=values.get(f"{_SGLANG}accept_rate"),
        drafts_only=drafts_only_in(told.version),
    )


# -- JSON ------------------------------------------------------------------------------------------------------


def _json_figures(text: str, path: str, told: Told) -> list[ServerFigures]:
    try:
        value = json.loads(text)
    except JSON_ERRORS as error:
        rows = [row for row in (_json_or_none(line) for line in text.splitlines()) if row is not None]
        if not rows:
            raise UserError(f"{path} is not valid JSON", got=str(error)[:160], remedy="save the server's answer unchanged") from error
        value = rows
    found = figures_in(value, path)
    for place, figures in enumerate(found):
        if figures.engine == "sglang" and figures.drafts_only is None:
            figures = replace(figures, drafts_only=drafts_only_in(told.version))
        found[place] = figures if figures.positions else replace(figures, num_draft_tokens=told.num_draft_tokens)
    return _merged_requests(found)


def _json_or_none(line: str) -> Any:
    try:
        return json.loads(line)
    except JSON_ERRORS:
        return None


def _merged_requests(found: list[ServerFigures]) -> list[ServerFigures]:
    """Answers to many requests are one reading: their counts are added up, unless one of them is odd."""
    requests = [figures for figures in found if figures.length_has_prefill and figures.rounds and figures.accepted is not None]
    if len(requests) < 2 or any(read(figures).oddities for figures in requests):
        return found
    return [figures for figures in found if figures not in requests] + [together(requests)]


# -- logs ------------------------------------------------------------------------------------------------------


def _vllm_figures(line: str, where: str, told: Told) -> ServerFigures | None:
    length, accepted = _after("Mean acceptance length", line), _after("Accepted", line)
    drafted, rate = _after("Drafted", line), _after("Avg Draft acceptance rate", line)
    match = re.search(r"Per-position acceptance rate: ([\d.,\s]+?)(?:, [A-Z]|$)", line)
    rates = tuple(float(part) for part in match[1].split(",") if part.strip()) if match else ()
    if length is None:
        return None
    return ServerFigures(
        "vllm",
        where,
        num_draft_tokens=len(rates) or told.num_draft_tokens,
        proposed=drafted,
        accepted=accepted,
        position_rates=rates,
        acceptance_length=length,
        acceptance_rate=None if rate is None else rate / 100,
    )


def _after(name: str, line: str) -> float | None:
    match = re.search(rf"(?:^|, |\s){name}: {_NUMBER}", line, flags=re.IGNORECASE)
    return float(match[1]) if match else None


def _sglang_line(match: re.Match[str], where: str, told: Told) -> ServerFigures:
    rate = float(match[2]) if match[2] else None
    return ServerFigures(
        "sglang",
        where,
        num_draft_tokens=told.num_draft_tokens,
        acceptance_length=float(match[1]),
        acceptance_rate=rate,
        drafts_only=drafts_only_in(told.version),
    )


def _k_in(text: str) -> int | None:
    for pattern, more in _KNOWN_K:
        match = pattern.search(text)
        if match and int(match[1]) > more:
            return int(match[1]) - more
    return None


def together(found: Iterable[ServerFigures]) -> ServerFigures:
    """Several groups of figures as one. Counts added up; where a line has rates only, their mean, weighted by what was proposed."""
    found = list(found)
    first = found[0]
    weights = [figures.rounds or figures.proposed or 1.0 for figures in found]
    width = max(len(figures.position_rates) for figures in found)
    rates = tuple(
        _mean([figures.position_rates[place] if place < len(figures.position_rates) else 0.0 for figures in found], weights)
        for place in range(width)
    )
    counted = max(len(figures.position_counts) for figures in found)
    counts = tuple(
        sum(figures.position_counts[place] for figures in found if place < len(figures.position_counts)) for place in range(counted)
    )
    lengths = [figures.acceptance_length for figures in found]
    stated = [length for length in lengths if length is not None]
    return replace(
        first,
        num_draft_tokens=max((figures.positions or 0 for figures in found), default=0) or None,
        rounds=_sum([figures.rounds for figures in found]),
        proposed=_sum([figures.proposed for figures in found]),
        accepted=_sum([figures.accepted for figures in found]),
        position_counts=counts,
        position_rates=rates,
        acceptance_length=_mean(stated, weights) if len(stated) == len(found) else None,
        acceptance_rate=None,
    )


def _mean(values: list[float], weights: list[float]) -> float:
    return sum(value * weight for value, weight in zip(values, weights, strict=True)) / sum(weights)


def _sum(values: list[float | None]) -> float | None:
    return None if any(value is None for value in values) else sum(value for value in values if value is not None)


def read_text(path: Path) -> str:
    """Raises UserError for a file that is too large or cannot be read."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise UserError(f"{path} is too large to be read", got=f"{path.stat().st_size} bytes", remedy="cut out a part: tail -c 200M")
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UserError(f"{path} cannot be read", got=error.strerror, remedy="check the path and its permissions") from error
