"""A village to talk about: what made targets are trained on, and what drafts for them are tried with.

A generated language of about a hundred words. A chat asks for two to four things, which are answered one after the
other: a way along the village's one road, a count, a word said again, what an animal does, a list read back. Every
answer follows from its question and from what is always so in the village, except for which of an animal's habits come
first; so most tokens can be foreseen and some cannot, and the number of different chats is far beyond what any training
sees. Which of them are held out is a property of the question's text: no training run ever sees one.
"""

from __future__ import annotations

import itertools
import random
import zlib
from collections.abc import Iterator

NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
PLACES = ("mill", "pond", "oak", "well", "barn", "gate", "hill", "ford", "inn", "tower")
WORDS = ("amber", "birch", "cedar", "delta", "ember", "fern", "grove", "haven")
COLOURS = ("red", "blue", "green", "white")
THINGS = ("cups", "jars", "pots", "bells", "ropes", "lamps", "drums")
HABITS: dict[str, tuple[str, ...]] = {
    "fox": ("eats berries", "sleeps by the oak", "runs at night"),
    "owl": ("eats mice", "sleeps in the barn", "flies at night"),
    "bear": ("eats honey", "sleeps on the hill", "walks at noon"),
    "hen": ("eats corn", "sleeps in the mill", "wakes at dawn"),
    "mole": ("eats worms", "sleeps under the well", "digs at dusk"),
    "otter": ("eats fish", "sleeps by the pond", "swims at noon"),
}
_HELD_OUT_EVERY = 8  # one question in so many


def made_chats(count: int, seed: int, *, held_out: bool) -> list[list[dict[str, str]]]:
    """`count` chats of one part or the other; equal for equal arguments on every machine."""
    rng = random.Random(f"village/{seed}/{held_out}")
    found: list[list[dict[str, str]]] = []
    for question, answer in _chats(rng):
        if is_held_out(question) == held_out:
            found.append([{"role": "user", "content": question}, {"role": "assistant", "content": answer}])
        if len(found) == count:
            break
    return found


def is_held_out(question: str) -> bool:
    return zlib.crc32(question.encode()) % _HELD_OUT_EVERY == 0


def _chats(rng: random.Random) -> Iterator[tuple[str, str]]:
    kinds = (_way, _count, _again, _habits, _list)
    while True:
        asked = [kind(rng) for kind in rng.sample(kinds, rng.randint(2, 4))]
        yield " Then ".join(question for question, _ in asked), " ".join(answer for _, answer in asked) + " That is all."


def _way(rng: random.Random) -> tuple[str, str]:
    """The places stand along one road in a fixed order."""
    start = rng.randrange(len(PLACES) - 2)
    stop = rng.randint(start + 2, min(start + 5, len(PLACES) - 1))
    road = PLACES[start : stop + 1]
    if rng.random() < 0.5:
        road = road[::-1]
    steps = " ".join(f"From the {here} go to the {there}." for here, there in itertools.pairwise(road))
    return f"tell the way from the {road[0]} to the {road[-1]}.", steps


def _count(rng: random.Random) -> tuple[str, str]:
    first = rng.randint(0, 6)
    last = rng.randint(first + 2, min(first + 7, len(NUMBERS) - 1))
    numbers = NUMBERS[first : last + 1]
    if rng.random() < 0.3:
        numbers = numbers[::-1]
    return f"count from {numbers[0]} to {numbers[-1]}.", ", ".join(numbers) + "."


def _again(rng: random.Random) -> tuple[str, str]:
    word, count = rng.choice(WORDS), rng.randint(2, 5)
    return f"say {word} {NUMBERS[count - 1]} times.", " ".join([word] * count) + "."


def _habits(rng: random.Random) -> tuple[str, str]:
    animal, count = rng.choice(list(HABITS)), rng.randint(1, 3)
    habits = rng.sample(HABITS[animal], count)
    return f"tell {NUMBERS[count - 1]} of the {animal}.", " ".join(f"The {animal} {habit}." for habit in habits)


def _list(rng: random.Random) -> tuple[str, str]:
    items = [f"{rng.choice(NUMBERS[1:6])} {rng.choice(COLOURS)} {rng.choice(THINGS)}" for _ in range(rng.randint(2, 3))]
    return f"read {', '.join(items)}.", " ".join(f"There are {item}." for item in items)
