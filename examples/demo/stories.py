"""Little market stories: questions, and answers that can be worded in many ways.

A question names a person, a trade, a place, the weather and two purchases; the answer tells the
errand and adds the purchases up. Every few words an answer chooses between a short and a long
wording, and each trade leans to its own side. One choice shifts every word after it, so what
stands a few places ahead depends on choices that are not made yet: taken place by place, the most
probable words belong to different wordings. That is what refinement in several passes is for.

    python examples/demo/stories.py        prints a few
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

NAMES = {
    **dict.fromkeys(("Anna", "Rosa", "Mira", "Ida"), "she"),
    **dict.fromkeys(("Tom", "Omar", "Paul", "Felix"), "he"),
}
TRADES = ("baker", "sailor", "teacher", "miller")
PLACES = ("market", "harbour", "village", "castle", "mill")
ITEMS = ("apples", "pears", "lemons", "buns", "eggs", "candles", "ropes", "books", "roses", "fish")
WEATHER = {"rainy": "rain", "sunny": "heat", "windy": "wind"}

QUESTION = (
    "{name} the {trade} buys {n} {item} and {m} {other} at the {place} on a {weather} day. "
    "How many things?"
)
STORY = (
    "{early} {name} {go} the {place} {sky}. {there} {she} {buy} {n} {item} {and} {m} {other} "
    "{from_whom}. {put} {she} {count}: {n} + {m} = {sum}, {so} {sum} things {home}."
)
# Short and long wording of each choice.
CHOICES = {
    "early": ("Today", "Early in the morning"),
    "go": ("walks to", "sets out for"),
    "sky": ("in the {air}", "in spite of the {air}"),
    "there": ("There", "At the old stall"),
    "buy": ("buys", "picks out"),
    "and": ("and", "and then also"),
    "from_whom": ("from a friend", "from a good old friend"),
    "put": ("Then", "A little later"),
    "count": ("counts", "counts them all"),
    "so": ("so", "and so we have"),
    "home": ("in all", "to carry home"),
}
# How often a trade takes the wording it leans to. Near one half many wordings stay likely.
LEAN = 0.57
TOKEN = r"\n|\d|[^\W\d_]+|[^\w\s]"

Facts = dict[str, str]


def draw_pairs(seed: int, count: int) -> Iterator[tuple[str, str]]:
    """Draw questions, each with one of its possible answers; a seed always gives the same."""
    rng = random.Random(seed)
    for _ in range(count):
        facts = draw_facts(rng)
        yield fill(QUESTION, facts, rng), fill(STORY, facts, rng)


def draw_facts(rng: random.Random) -> Facts:
    """Person, place, weather and purchases of one question."""
    name = rng.choice(sorted(NAMES))
    item, other = rng.sample(ITEMS, 2)
    n, m = rng.randint(2, 9), rng.randint(2, 9)
    weather = rng.choice(sorted(WEATHER))
    return {
        "name": name,
        "she": NAMES[name],
        "trade": rng.choice(TRADES),
        "place": rng.choice(PLACES),
        "weather": weather,
        "air": WEATHER[weather],
        "item": item,
        "other": other,
        "n": str(n),
        "m": str(m),
        "sum": str(n + m),
    }


def fill(text: str, facts: Facts, rng: random.Random) -> str:
    """Replace every ``{slot}`` by a fact or by one of its wordings."""

    def choose(match: re.Match[str]) -> str:
        slot = match[1]
        if slot in facts:
            return facts[slot]
        as_usual = rng.random() < LEAN
        wording = CHOICES[slot][as_usual == leans_long(facts["trade"], slot)]
        return fill(wording, facts, rng)

    return re.sub(r"\{(\w+)\}", choose, text)


def leans_long(trade: str, slot: str) -> bool:
    """Whether a trade leans to the long wording of a choice: fixed, and its own for each trade."""
    return (TRADES.index(trade) + 1) * sum(map(ord, slot)) % 5 < 2


def split(text: str) -> list[str]:
    """Words, single digits and punctuation marks."""
    return re.findall(TOKEN, text)


def vocabulary() -> list[str]:
    """Every token of every question and answer, sorted."""
    wordings = [wording for pair in CHOICES.values() for wording in pair]
    bare = re.sub(r"\{\w+\}", " ", " ".join([STORY, QUESTION, *wordings]))
    words = {*split(bare), *NAMES, *NAMES.values(), *TRADES, *PLACES, *ITEMS}
    return sorted({*words, *WEATHER, *WEATHER.values(), *"0123456789"})


if __name__ == "__main__":
    for question, answer in draw_pairs(0, 4):
        print(f"Q: {question}\nA: {answer}\n")
