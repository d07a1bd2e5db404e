"""Temperature, top-k and top-p are ``generate``'s own."""

from __future__ import annotations

import pytest
import torch

from specforge_dstill.evaluation.sampling import Sampling
from tests import tiny


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 1.0},
        {"temperature": 0.6},
        {"temperature": 1.0, "top_k": 5},
        {"temperature": 1.0, "top_p": 0.7},
        {"temperature": 1.7, "top_k": 20, "top_p": 0.8},
        {"temperature": 0.7, "top_k": 1000, "top_p": 0.01},
    ],
)
def test_the_distribution_is_that_of_generate(settings: dict[str, float]) -> None:
    model = tiny.target_model()
    prompt = torch.tensor([[5, 9, 12]])
    torch.manual_seed(0)
    theirs = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        do_sample=True,
        max_new_tokens=4,
        eos_token_id=None,
        output_scores=True,
        output_logits=True,
        return_dict_in_generate=True,
        **{"top_k": 0, "top_p": 1.0, **settings},
    )
    logits, scores = (torch.cat(found) for found in (theirs.logits, theirs.scores))
    found = Sampling(**settings).probabilities(logits)
    assert torch.equal(found, scores.softmax(-1))
    torch.testing.assert_close(found.sum(1), torch.ones(4))


def test_greedy_takes_the_most_probable_and_no_random_number() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0], [3.0, 0.0, 3.0]])
    generator = torch.Generator().manual_seed(0)
    before = generator.get_state()
    assert Sampling().tokens(logits, generator).tolist() == [1, 0]
    assert torch.equal(generator.get_state(), before)
    assert Sampling().tokens(logits, None).tolist() == [1, 0]


def test_sampling_without_a_generator_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a generator"):
        Sampling(temperature=1.0).tokens(torch.zeros(1, 3), None)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"temperature": -0.1}, "temperature must be at least 0"),
        ({"top_k": -1}, "top_k must be at least 0"),
        ({"top_p": 0.0}, "top_p must be above 0"),
        ({"top_p": 1.1}, "top_p must be above 0 and at most 1"),
    ],
)
def test_settings_without_a_meaning(settings: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Sampling(**settings)
