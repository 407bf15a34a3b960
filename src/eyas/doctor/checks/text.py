"""K: are texts rendered, masked and numbered as the target serves them, and are the answers its own?"""

from __future__ import annotations

from eyas.doctor.examination import Examination
from eyas.doctor.hypothesis import Evidence, Fault, Hypothesis, Outcome, confirmed, ruled_out, untestable
from eyas.files import sha256_text


def template_of(exam: Examination) -> str | None:
    """The target's chat template, as text; None if it has none that can be read."""
    target = exam.target
    if target is None:
        return None
    file = target.folder / "chat_template.jinja"
    if file.is_file():
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return None
    value = target.tokenizer.value.get("chat_template")
    return value if isinstance(value, str) else None


def _template(exam: Examination) -> Outcome:
    text = template_of(exam)
    if text is None:
        return untestable("the target has no chat template that can be read")
    here = sha256_text(text)
    words = {
        name: f"the {name} was made with chat template {there[:12]}, and the target now renders with {here[:12]}"
        for name, there in exam.recorded("chat_template_hash").items()
        if isinstance(there, str) and there != here
    }
    if words:
        fault = Fault("template-differs", " and ".join(words), tuple(Evidence(part) for part in words.values()), _SAME, 0.55)
        return confirmed(fault)
    return ruled_out(f"the template is the recorded one ({here[:12]})")


_SAME = "serve with the template of training, or render and capture the chats again with the served one"


def _tokenizer(exam: Examination) -> Outcome:
    from eyas.doctor.replay.text import check_tokenizer

    return check_tokenizer(exam)


def _bos(exam: Examination) -> Outcome:
    from eyas.doctor.replay.text import check_bos

    return check_bos(exam)


def _own(exam: Examination) -> Outcome:
    from eyas.doctor.replay.text import check_own

    return check_own(exam)


def _rendered(exam: Examination) -> Outcome:
    from eyas.doctor.replay.text import check_rendering

    return check_rendering(exam)


def _data(exam: Examination) -> Outcome:
    from eyas.doctor.replay.text import check_data

    return check_data(exam)


HYPOTHESES = (
    Hypothesis(
        "template-differs",
        "static",
        "the chat template changed since dump or draft were made",
        ("target",),
        "compare its hash with the records",
        "it differs",
        _template,
        prior=0.2,
    ),
    Hypothesis(
        "tokenizer-differs",
        "weights",
        "the tokenizer gives other ids",
        ("target",),
        "compare its vocabulary's hash with the records",
        "it differs",
        _tokenizer,
        prior=0.2,
        seconds=0.5,
    ),
    Hypothesis(
        "bos-doubled",
        "weights",
        "texts begin with the begin-of-text token twice, or lack it",
        ("samples", "target"),
        "look at the first tokens",
        "twice in most samples",
        _bos,
        prior=0.15,
        seconds=0.1,
    ),
    Hypothesis(
        "data-broken",
        "weights",
        "the chats cannot be rendered",
        ("data", "target"),
        "render every chat",
        "some or all are refused",
        _data,
        prior=0.1,
        seconds=0.5,
    ),
    Hypothesis(
        "template-differs",
        "replay",
        "texts of the dump are not rendered as the target renders them",
        ("samples", "target"),
        "read the texts back and render their turns again",
        "other tokens",
        _rendered,
        prior=0.2,
        seconds=0.5,
    ),
    Hypothesis(
        "text-foreign",
        "replay",
        "the answers are not the target's own",
        ("samples",),
        "compare each answer token with the one that the target prefers there",
        "they agree rarely",
        _own,
        prior=0.2,
        seconds=0.5,
    ),
)
