"""G: embedding and lm_head, the draft's own and those that it shares."""

from __future__ import annotations

from eyas.doctor.examination import Examination
from eyas.doctor.hypothesis import Evidence, Fault, Hypothesis, Outcome, confirmed, ruled_out, untestable
from eyas.doctor.opening.expected import sidecar_config, vocabulary
from eyas.doctor.opening.target import EMBEDDINGS, HEADS


def _head_there(exam: Examination) -> Outcome:
    draft = exam.draft
    assert draft is not None
    if not draft.weights.tensors:
        return untestable("there are no headers to read")
    if draft.has("lm_head.weight"):
        return ruled_out("lm_head is in the weights")
    own, whole_ones = vocabulary(draft)
    source = draft.stated.get("lm_head_source") or sidecar_config(draft).get("lm_head_source") or draft.said.get("lm_head_source")
    d2t = draft.weights_shape("d2t")
    reduced = bool((own and whole_ones and own < whole_ones) or (d2t and whole_ones and d2t[0] < whole_ones))
    if reduced or source == "draft":
        text = f"the weights hold no lm_head, and the target's cannot stand in for {own} of {whole_ones} tokens: engines serve a random one"
        fault = Fault("head-missing", "draft", (Evidence(text),), _EXPORT, 0.9, covers=("keys-differ",))
        return confirmed(fault)
    return ruled_out(f"the draft has no lm_head of its own, and knows the whole vocabulary: it shares {source or 'the targets'}")


_EXPORT = "export the draft again with lm_head.weight; until then the target's rows can stand in, which predicts worse"


def _embedding_there(exam: Examination) -> Outcome:
    draft = exam.draft
    assert draft is not None
    wants = draft.stated.get("own_embedding", sidecar_config(draft).get("own_embedding"))
    if wants is True and draft.weights.tensors and not draft.has("embed_tokens.weight"):
        text = "the draft is said to bring an embedding of its own, and the weights hold none"
        fault = Fault(
            "embedding-foreign",
            "draft",
            (Evidence(text),),
            "export the draft with embed_tokens.weight",
            0.8,
            covers=("keys-differ",),
        )
        return confirmed(fault)
    if draft.has("embed_tokens.weight") and wants is False:
        text = "the weights hold an embedding that the draft was written without: vLLM would take it, SGLang would not"
        fault = Fault(
            "embedding-foreign",
            "draft",
            (Evidence(text),),
            "remove embed_tokens.weight, or export the draft again",
            0.6,
            covers=("keys-differ",),
        )
        return confirmed(fault)
    return ruled_out("an embedding is there exactly if the draft was written with one")


def _target_side(exam: Examination) -> Outcome:
    target = exam.target
    assert target is not None
    if not target.weights.tensors:
        return untestable("the target's weights have no headers that can be read")
    embedding, head = target.find(EMBEDDINGS), target.find(HEADS)
    if embedding is None:
        text = "the target's token embedding is not found in its weights, so a draft that shares it gets none"
        return confirmed(Fault("target-head", "target", (Evidence(text),), "copy the target whole", 0.7))
    if head is None and target.tied is None:
        return untestable("the target has no lm_head, and its config leaves it to the family whether it is tied to the embedding")
    if head is None and not target.tied:
        text = "the target has no lm_head, and its config does not tie it to the embedding: the head would be random"
        return confirmed(Fault("target-head", "target", (Evidence(text),), "set tie_word_embeddings, or copy lm_head along", 0.7))
    sizes = (target.vocab_size, target.hidden_size)
    shape = target.weights.shape(embedding)
    if shape is not None and sizes[1] is not None and shape[1] != sizes[1]:
        text = f"the target's embedding is {list(shape)}; its config says hidden size {sizes[1]}"
        return confirmed(Fault("target-head", "target", (Evidence(text),), "use the config that came with these weights", 0.7))
    return ruled_out(f"embedding {embedding}, head {head or 'tied to it'}", embedding=embedding, head=head)


def _embedding(exam: Examination) -> Outcome:
    from eyas.doctor.weights import compare_embedding

    return compare_embedding(exam)


def _head(exam: Examination) -> Outcome:
    from eyas.doctor.weights import compare_head

    return compare_head(exam)


def _replayed_head(exam: Examination) -> Outcome:
    from eyas.doctor.replay.heads import try_head

    return try_head(exam)


def _replayed_embedding(exam: Examination) -> Outcome:
    from eyas.doctor.replay.heads import try_embedding

    return try_embedding(exam)


def _nothing(exam: Examination) -> Outcome:
    from eyas.doctor.reported import extremes

    return extremes(exam, "accepts-nothing")


HYPOTHESES = (
    Hypothesis(
        "accepts-nothing",
        "static",
        "the server never accepts anything",
        ("readings",),
        "compare the reported acceptance length with 1 and with K + 1",
        "no round is longer than 1",
        _nothing,
        prior=0.1,
    ),
    Hypothesis(
        "head-missing", "static", "lm_head is not in the weights", ("draft",), "read the headers", "there is none", _head_there, prior=0.3
    ),
    Hypothesis(
        "embedding-foreign",
        "static",
        "an embedding is missing, or there where none belongs",
        ("draft",),
        "read the headers and the wiring",
        "it differs from what was written",
        _embedding_there,
        prior=0.1,
    ),
    Hypothesis(
        "target-head",
        "static",
        "the target's embedding or head is not where it is looked for",
        ("target",),
        "look for both in the headers of the target's shards",
        "one is missing",
        _target_side,
        prior=0.1,
    ),
    Hypothesis(
        "embedding-foreign",
        "weights",
        "the draft's embedding is not the target's",
        ("draft", "target"),
        "compare them row by row",
        "rows are unlike, or some only",
        _embedding,
        prior=0.2,
        seconds=0.5,
    ),
    Hypothesis(
        "head-foreign",
        "weights",
        "lm_head is random or another's",
        ("draft", "target"),
        "compare its rows with the target's",
        "they have nothing in common",
        _head,
        prior=0.2,
        seconds=0.5,
    ),
    Hypothesis(
        "head-foreign",
        "replay",
        "lm_head is not the one of training",
        ("draft", "replay"),
        "put the target's rows in its place and measure",
        "accuracy rises",
        _replayed_head,
        prior=0.4,
        seconds=1.0,
    ),
    Hypothesis(
        "embedding-foreign",
        "replay",
        "the embedding is not the one of training",
        ("draft", "replay"),
        "put the target's in its place, scaled and not, and measure",
        "accuracy rises",
        _replayed_embedding,
        prior=0.4,
        seconds=1.0,
    ),
)
