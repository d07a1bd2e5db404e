from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, dynamic_module_utils

from specforge_dstill.data.chat import (
    answer_text,
    chat_encoder,
    prompt_tokens,
    stop_token_ids,
)
from specforge_dstill.data.chat_templates import template_hash
from specforge_dstill.data.conversations import Conversation, Message
from specforge_dstill.data.left_out import RewrittenAnswersError
from specforge_dstill.errors import UserError

from .conftest import make_tokenizer

# <|im_start|> 1, <|im_end|> 2, "\n" 6, user 7, assistant 8, w0 10, w1 11, …
HEAD_USER, HEAD_ANSWER, END, NEWLINE = [1, 7, 6], [1, 8, 6], 2, 6


def talk(*texts: str, cut: bool = False) -> Conversation:
    messages = [Message(("user", "assistant")[i % 2], text) for i, text in enumerate(texts)]
    if cut:
        messages[-1] = Message("assistant", texts[-1], finish="length")
    return Conversation("c", tuple(messages))


def encoder(tokenizer: Any, **options: Any) -> Any:
    return chat_encoder(tokenizer, **{"stop_ids": (2,), "max_length": 64, **options})


def test_only_the_answer_and_its_stop_token_are_scored(tokenizer: Any) -> None:
    sample = encoder(tokenizer)(talk("w0 w1", "w2 w3"))
    assert sample.input_ids.tolist() == [
        *HEAD_USER, 10, 11, END, NEWLINE, *HEAD_ANSWER, 12, 13, END, NEWLINE,
    ]  # fmt: skip
    assert sample.loss_mask.tolist() == [0] * 10 + [1, 1, 1, 0]


def test_every_turn_is_scored(tokenizer: Any) -> None:
    sample = encoder(tokenizer)(talk("w0", "w1", "w2", "w3 w4"))
    answered = [i for i, scored in enumerate(sample.loss_mask.tolist()) if scored]
    assert [sample.input_ids[i].item() for i in answered] == [11, END, 13, 14, END]
    last = encoder(tokenizer, last_turn_only=True)(talk("w0", "w1", "w2", "w3 w4"))
    assert last.input_ids[last.loss_mask.bool()].tolist() == [13, 14, END]


def test_no_earlier_turn_is_scored_in_place_of_the_last(tokenizer: Any) -> None:
    """``train_only_last_turn``: an empty last answer leaves nothing, a rewritten one is told."""
    encode = encoder(tokenizer, last_turn_only=True)
    assert not encode(talk("w0", "w1 w2", "w3", "")).loss_mask.any()
    other = make_tokenizer()
    other.chat_template = thinking_template(keep_last=False)
    rewritten = talk("w0", "w1 w2", "w3", "<think> w4 </think> w5")
    assert encoder(other)(rewritten).loss_mask.sum() == 3
    with pytest.raises(RewrittenAnswersError):
        encoder(other, last_turn_only=True)(rewritten)


# As GPT-OSS's own: the reasoning is "thinking", and shown of the last answer only.
HARMONY = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.role == 'assistant' and loop.last and m.thinking is defined %}"
    "{{ 'w8 ' + m.thinking + ' w9 ' }}{% endif %}"
    "{{ m.content + '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def test_reasoning_is_scored_with_its_answer_where_the_template_calls_it_thinking() -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = HARMONY
    messages = (
        Message("user", "w0"),
        Message("assistant", "w1", "w2"),
        Message("user", "w3"),
        Message("assistant", "w4", "w5 w6"),
    )
    sample = encoder(tokenizer)(Conversation("c", messages))
    scored = sample.input_ids[sample.loss_mask.bool()].tolist()
    assert scored[-6:] == [18, 15, 16, 19, 14, END]
    assert 12 not in sample.input_ids.tolist()


def test_an_answer_cut_off_has_no_stop_token(tokenizer: Any) -> None:
    sample = encoder(tokenizer)(talk("w0", "w1 w2", cut=True))
    assert sample.input_ids[sample.loss_mask.bool()].tolist() == [11, 12]


def test_without_a_stop_token_in_the_template_only_the_text_counts(tokenizer: Any) -> None:
    encode = encoder(tokenizer, stop_ids=(5,))
    with pytest.warns(UserWarning, match="closes an answer with no stop token"):
        sample = encode(talk("w0", "w1 w2"))
    assert sample.input_ids[sample.loss_mask.bool()].tolist() == [11, 12]


def test_truncation(tokenizer: Any) -> None:
    sample = encoder(tokenizer, max_length=11)(talk("w0 w1", "w2 w3"))
    assert len(sample) == 11
    assert sample.loss_mask.tolist() == [0] * 10 + [1]
    assert not sample.usable()


def thinking_template(keep_last: bool) -> str:
    kept = "loop.last" if keep_last else "false"
    return (
        "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}"
        "{% if m['role'] == 'assistant' and not " + kept + " %}"
        "{{ m['content'].split('</think>')[-1].strip() }}{% else %}{{ m['content'] }}{% endif %}"
        "{{ '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )


def test_turns_that_the_template_rewrites_are_not_scored() -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = thinking_template(keep_last=True)
    conversation = talk("w0", "<think> w1 </think> w2", "w3", "<think> w4 </think> w5")
    sample = encoder(tokenizer)(conversation)
    think, unthink = tokenizer.convert_tokens_to_ids(["<think>", "</think>"])
    scored = sample.input_ids[sample.loss_mask.bool()].tolist()
    assert scored == [think, 14, unthink, 15, END]


def test_a_template_that_rewrites_every_answer_is_refused() -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = thinking_template(keep_last=False)
    with pytest.raises(RewrittenAnswersError) as caught:
        encoder(tokenizer)(talk("w0", "<think> w1 </think> w2"))
    assert str(caught.value).startswith("conversation 'c': the chat template rewrites every answer")
    assert caught.value.conversation == "c"


def test_an_empty_answer_is_no_fault_of_the_template() -> None:
    sample = encoder(make_tokenizer())(talk("w0", ""))
    assert not sample.usable()


def test_template_kwargs_reach_the_template() -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}"
        "{% if m['role'] == 'assistant' and quiet %}{{ '<think> </think> ' }}{% endif %}"
        "{{ m['content'] + '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}"
        "{{ '<|im_start|>assistant\n' }}{% if quiet %}{{ '<think> </think> ' }}"
        "{% endif %}{% endif %}"
    )
    plain = encoder(tokenizer)(talk("w0", "w1 w2"))
    quiet = encoder(tokenizer, template_kwargs={"quiet": True})(talk("w0", "w1 w2"))
    assert len(quiet) > len(plain)
    # The empty thinking belongs to the prompt: the target never generates it.
    assert quiet.input_ids[quiet.loss_mask.bool()].tolist()[-1] == END
    assert quiet.loss_mask.sum() == plain.loss_mask.sum()


CALLING = (
    "{% if tools %}{{ tools[0].function.name + ' ' }}{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] }}"
    "{% for call in m.tool_calls %}{{ ' ' + call.function.arguments.city }}{% endfor %}"
    "{% if m.tool_call_id %}{{ ' ' + m.tool_call_id }}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def with_a_tool(first_answer: str) -> Conversation:
    call = {"function": {"name": "w20", "arguments": {"city": "w21"}}}
    messages = (
        Message("user", "w0"),
        Message("assistant", first_answer, tool_calls=(call,)),
        Message("tool", "w1", name="w20", tool_call_id="w22"),
        Message("assistant", "w2 w3"),
    )
    return Conversation("c", messages, ({"function": {"name": "w20"}},))


@pytest.mark.parametrize(("said", "scored"), [("", []), ("w8 w9", [18, 19])])
def test_a_template_sees_tools_and_calls_and_the_answers_texts_are_scored(
    said: str, scored: list[int]
) -> None:
    """A call is shown in the template's words, which need not be those that the target used."""
    tokenizer = make_tokenizer()
    tokenizer.chat_template = CALLING
    sample = encoder(tokenizer)(with_a_tool(said))
    assert {30, 31, 32} <= set(sample.input_ids.tolist())
    assert sample.input_ids[sample.loss_mask.bool()].tolist() == [*scored, 12, 13, END]


def test_specforge_templates_see_the_tools() -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = CALLING
    sample = encoder(tokenizer, template="lfm")(with_a_tool(""))
    assert {30, 31} <= set(sample.input_ids.tolist())


def test_white_space_around_an_answer_may_be_trimmed() -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = tokenizer.chat_template.replace(
        "m['content']", "m['content'].strip()"
    )
    sample = encoder(tokenizer)(talk("w0", "w1 \n\n w2 \n"))
    assert sample.loss_mask.sum() == 5


def test_a_template_that_refuses(tokenizer: Any) -> None:
    other = make_tokenizer()
    other.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(UserError) as caught:
        encoder(other)(talk("w0", "w1"))
    assert (
        str(caught.value) == "conversation 'c': the chat template refuses it: roles must alternate"
    )
    other.chat_template = None
    with pytest.raises(UserError, match="has no chat template; name one of SpecForge's with"):
        encoder(other)


def test_a_prompt_ends_where_the_answer_starts(tokenizer: Any) -> None:
    asked = [Message("user", "w0 w1")]
    ids = prompt_tokens(tokenizer, asked, {}, name="c")
    assert ids == [*HEAD_USER, 10, 11, END, NEWLINE, *HEAD_ANSWER]
    without = make_tokenizer()
    without.chat_template = None
    with pytest.raises(UserError) as caught:
        prompt_tokens(without, asked, {}, name="c")
    assert str(caught.value).startswith("conversation 'c': the chat template refuses it: Cannot ")
    assert "\n" not in str(caught.value)


def test_an_answers_text_lacks_its_stop_token_only(tokenizer: Any) -> None:
    assert answer_text(tokenizer, [12, 13, END], (END,)) == "w2 w3"
    assert answer_text(tokenizer, [12, END, 13], (END,)) == "w2 <|im_end|> w3"


def byte_tokenizer(*, fallback: bool) -> PreTrainedTokenizerFast:
    """A token a byte: as byte-level BPE has them, or as SentencePiece's byte fallback."""
    if fallback:
        names = [f"<0x{byte:02X}>" for byte in range(256)]
        decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    else:
        names, decoder = sorted(pre_tokenizers.ByteLevel.alphabet()), decoders.ByteLevel()
    vocabulary = {name: index for index, name in enumerate(names)}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=fallback))
    if not fallback:
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoder
    return PreTrainedTokenizerFast(tokenizer_object=made)


@pytest.mark.parametrize("fallback", [False, True])
def test_an_answer_cut_inside_a_character_ends_before_it(fallback: bool) -> None:
    """What the decoder puts there would be scored as tokens that the target did not generate."""
    tokenizer = byte_tokenizer(fallback=fallback)
    ids = tokenizer("a日\U0001f600", add_special_tokens=False)["input_ids"]
    assert len(ids) == 1 + 3 + 4
    texts = [answer_text(tokenizer, ids[:count], (END,)) for count in range(1, 9)]
    assert texts == ["a"] * 3 + ["a日"] * 4 + ["a日\U0001f600"]
    # One that the target itself put before its stop token, or several of, are its own.
    own = tokenizer("a\ufffd", add_special_tokens=False)["input_ids"]
    assert answer_text(tokenizer, [*own, END], (END,)) == "a\ufffd"
    assert answer_text(tokenizer, [*own, *own[1:]], (END,)) == "a\ufffd\ufffd"


def test_specforge_templates(tokenizer: Any) -> None:
    sample = encoder(tokenizer, template="lfm")(talk("w0 w1", "w2 w3"))
    # SpecForge's own mask, its newline after the stop token included.
    assert sample.loss_mask.tolist() == [0] * 10 + [1, 1, 1, 1]
    assert template_hash(tokenizer, "lfm") != template_hash(tokenizer, "qwen")


def test_unknown_template_lists_the_nearest_first(tokenizer: Any) -> None:
    with pytest.raises(UserError) as caught:
        encoder(tokenizer, template="qwen3-instuct")
    assert str(caught.value).startswith(
        "unknown chat template 'qwen3-instuct'; nearest first: qwen3-instruct, "
    )
    assert "llama3" in str(caught.value)


def test_stop_tokens_come_from_the_generation_config(target: Path, tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    assert tokenizer.eos_token_id == 5
    assert stop_token_ids(target, tokenizer) == (2,)
    for name in ("config.json", "generation_config.json"):
        (tmp_path / name).write_text((target / name).read_text())
    generation = json.loads((target / "generation_config.json").read_text())
    generation["eos_token_id"] = [4, 2, 4]
    (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    assert stop_token_ids(tmp_path, tokenizer) == (4, 2)


def test_stop_tokens_fall_back(target: Path, tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    config = json.loads((target / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"eos_token_id": 3}))
    assert stop_token_ids(tmp_path, tokenizer) == (3,)
    (tmp_path / "config.json").write_text(json.dumps(config | {"eos_token_id": None}))
    assert stop_token_ids(tmp_path, tokenizer) == (5,)
    with pytest.raises(UserError, match="names a stop token"):
        stop_token_ids(tmp_path)


def test_stop_tokens_of_a_config_with_code_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    (tmp_path / "configuration_own.py").write_text(
        "from transformers import PretrainedConfig\n\n\n"
        "class OwnConfig(PretrainedConfig):\n    model_type = 'own_of_a_test'\n"
    )
    config = {
        "model_type": "own_of_a_test",
        "auto_map": {"AutoConfig": "configuration_own.OwnConfig"},
        "eos_token_id": 7,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert stop_token_ids(tmp_path, trust_remote_code=True) == (7,)
    with pytest.raises(UserError, match="contains custom code"):
        stop_token_ids(tmp_path)
