"""A small made-up world to talk about: what tiny targets are trained on.

The text is narrow on purpose. Most tokens follow from the words before them, so that a model of a few hundred thousand
weights gets them right after seconds of training; some (which fact comes next) are open, so that a draft can be wrong.
Every answer has an end that can be foreseen, so that the end-of-turn token is learnt too.
"""

from __future__ import annotations

import random

NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_ORDINALS = ("First", "Second", "Third", "Fourth")
_WORDS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "haven")
_FACTS: dict[str, tuple[str, ...]] = {
    "fox": ("eats berries", "sleeps under the oak", "runs over the hill", "hears the wind"),
    "owl": ("eats mice", "sleeps in the barn", "flies at midnight", "sees every shadow"),
    "bear": ("eats honey", "sleeps all winter", "walks along the creek", "smells the rain"),
    "heron": ("eats frogs", "sleeps on one leg", "wades through the marsh", "waits for hours"),
    "mole": ("eats worms", "sleeps below the garden", "digs long tunnels", "feels the ground shake"),
    "otter": ("eats trout", "sleeps on its back", "swims down the river", "plays with pebbles"),
}


def tiny_chat(rng: random.Random) -> list[dict[str, str]]:
    """One chat of one or two questions, with the right answers."""
    messages = [{"role": "system", "content": "Answer in short sentences."}] if rng.random() < 0.3 else []
    for _ in range(1 if rng.random() < 0.7 else 2):
        question, answer = rng.choice((_facts, _facts, _count, _repeat))(rng)
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return messages


def tiny_chats(count: int, seed: int) -> list[list[dict[str, str]]]:
    """`count` chats; equal for equal arguments on every machine."""
    rng = random.Random(f"tiny/{seed}")
    return [tiny_chat(rng) for _ in range(count)]


def _facts(rng: random.Random) -> tuple[str, str]:
    animal, count = rng.choice(list(_FACTS)), rng.randint(1, len(_ORDINALS))
    facts = rng.sample(_FACTS[animal], count)
    question = f"Tell me {NUMBERS[count - 1]} thing{'s' if count > 1 else ''} about the {animal}."
    return question, " ".join(f"{_ORDINALS[n]}, the {animal} {fact}." for n, fact in enumerate(facts))


def _count(rng: random.Random) -> tuple[str, str]:
    first = rng.randint(0, 6)
    last = rng.randint(first + 2, min(first + 7, len(NUMBERS) - 1))
    return f"Count from {NUMBERS[first]} to {NUMBERS[last]}.", ", ".join(NUMBERS[first : last + 1]) + "."


def _repeat(rng: random.Random) -> tuple[str, str]:
    word, count = rng.choice(_WORDS), rng.randint(2, 5)
    return f"Say {word} {NUMBERS[count - 1]} times.", " ".join([word] * count) + "."
