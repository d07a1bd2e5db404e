from __future__ import annotations

import argparse
import json
import shutil
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from specforge.algorithms.builtin import builtin_algorithm_registry

from specforge_dstill.data import capture as verb
from specforge_dstill.data.batches import batches_by_length
from specforge_dstill.data.capture_sglang import SglangExtractor, load_sglang
from specforge_dstill.data.capture_transformers import (
    TransformersExtractor,
    decoder_layers,
)
from specforge_dstill.data.chat import TokenSample
from specforge_dstill.data.feature_files import load_features, read_tensors
from specforge_dstill.data.float8 import encode_float8
from specforge_dstill.data.manifest import CacheManifest, read_samples
from specforge_dstill.errors import UserError
from specforge_dstill.token_hash import token_hash

from .caches import LAYERS, WIDTH, capture_here, files_of, layout, make_samples
from .conftest import make_tokenizer, write_lines


def expected(model: Any, sample: TokenSample, layers: Sequence[int] = LAYERS) -> torch.Tensor:
    with torch.inference_mode():
        states = model(sample.input_ids[None], output_hidden_states=True).hidden_states
    return torch.cat([states[layer + 1][0] for layer in layers], dim=-1)


@pytest.mark.parametrize("layers", [(0,), (3,), (0, 2, 3), (3, 1)])
def test_features_are_the_output_hidden_states(model: Any, layers: tuple[int, ...]) -> None:
    samples = make_samples([9, 5, 17])
    extract = TransformersExtractor(model, layers, with_last=True)
    for sample, found in zip(samples, extract(samples), strict=True):
        torch.testing.assert_close(
            found.hidden_states, expected(model, sample, layers), atol=1e-5, rtol=1e-5
        )
        with torch.inference_mode():
            logits = model(sample.input_ids[None]).logits[0]
            assert found.last is not None
            torch.testing.assert_close(model.lm_head(found.last), logits, atol=1e-4, rtol=1e-4)


def test_features_do_not_depend_on_the_batch(model: Any) -> None:
    samples = make_samples([9, 5, 17, 5])
    extract = TransformersExtractor(model, LAYERS)
    blocks = decoder_layers(model.get_decoder())
    hooks = [len(block._forward_hooks) for block in blocks]
    together = extract(samples)
    for i, sample in enumerate(samples):
        (alone,) = extract([sample])
        torch.testing.assert_close(
            alone.hidden_states, together[i].hidden_states, atol=1e-5, rtol=1e-5
        )
        assert alone.last is None
    assert [len(block._forward_hooks) for block in blocks] == hooks


def test_a_model_without_its_head_gives_the_same(model: Any) -> None:
    (sample,) = make_samples([9])
    (found,) = TransformersExtractor(model.model, LAYERS)([sample])
    torch.testing.assert_close(found.hidden_states, expected(model, sample))


def test_layers_beyond_the_target_are_refused(model: Any) -> None:
    with pytest.raises(UserError) as caught:
        TransformersExtractor(model, [1, 4])
    assert str(caught.value) == (
        "the draft config wants layer 4 of the target, which has layers 0 to 3"
    )


def test_batches_by_length() -> None:
    lengths = [3, 10, 4, 10, 1]
    assert list(batches_by_length(lengths, 20)) == [[1, 3], [2, 0, 4]]
    assert list(batches_by_length(lengths, 1)) == [[1], [3], [2], [0], [4]]
    assert list(batches_by_length([], 8)) == []


def test_the_cache_on_disk(model: Any, tmp_path: Path) -> None:
    samples = make_samples([9, 5, 17, 6, 7, 8, 9])
    samples[1] = TokenSample("s1", samples[1].input_ids, torch.tensor([0, 1, 0, 1, 0]))
    told: list[int] = []
    done = capture_here(tmp_path, samples, TransformersExtractor(model, LAYERS), update=told.append)
    assert done == CacheManifest.read(tmp_path)
    assert (done.samples, done.dropped) == (6, {"no two neighbouring scored tokens": 1})
    assert done.dropped_ids == {"no two neighbouring scored tokens": ["s1"]}
    assert told == [3, 3, 1]
    rows = read_samples(tmp_path, done)
    assert [row["sample_id"] for row in rows] == [
        "data/00000/00000000.ckpt", "data/00000/00000002.ckpt", "data/00001/00000003.ckpt",
        "data/00001/00000004.ckpt", "data/00001/00000005.ckpt", "data/00002/00000006.ckpt",
    ]  # fmt: skip
    for row in rows:
        sample = next(s for s in samples if s.id == row["id"])
        found = torch.load(tmp_path / row["sample_id"], weights_only=True)
        assert list(found) == ["input_ids", "loss_mask", "hidden_states"]
        assert found["input_ids"].dtype == found["loss_mask"].dtype == torch.int64
        assert torch.equal(found["input_ids"], sample.input_ids)
        assert torch.equal(found["loss_mask"], sample.loss_mask)
        assert row["length"] == len(sample)
        assert row["token_hash"] == token_hash(sample.input_ids.tolist())
        torch.testing.assert_close(
            found["hidden_states"], expected(model, sample), atol=1e-5, rtol=1e-5
        )
        size = (tmp_path / row["sample_id"]).stat().st_size
        assert size < found["hidden_states"].numel() * 4 + 6000  # no padding hangs on


def test_specforge_reads_the_cache(model: Any, tmp_path: Path) -> None:
    from specforge.runtime.data_plane.offline_reader import OfflineManifestReader

    for name, keys in (("dflash", 3), ("dspark", 4)):
        folder = tmp_path / name
        extract = TransformersExtractor(model, LAYERS, with_last=name == "dspark")
        capture_here(folder, make_samples([9, 6]), extract, layout=layout(name))
        reader = OfflineManifestReader(
            str(folder), strategy=name, feature_keys=layout(name).output_names, validate_files=True
        )
        refs = reader.read()
        assert [ref.num_tokens for ref in refs] == [9, 6]
        assert len(refs[0].feature_keys) == keys
        provider = builtin_algorithm_registry().resolve(name).providers.offline_for("text")
        raw = torch.load(folder / "data/00000/00000000.ckpt", weights_only=True)
        assert provider.build_normalizer(64)(raw)["hidden_states"].shape == (1, 9, WIDTH)


class FakeSglang:
    """What specforge.offline_capture's engine offers, answered from a transformers model."""

    def __init__(self, model: Any) -> None:
        self.model, self.calls = model, []  # type: ignore[var-annotated]

    def set_capture_layers(self, layer_ids: Any = None, *, capture_method: str = "eagle3") -> None:
        self.layers, self.method = layer_ids, capture_method

    def capture(self, *, input_ids: Any, attention_mask: Any, loss_mask: Any) -> Any:
        assert input_ids.shape == attention_mask.shape == loss_mask.shape
        self.calls.append(attention_mask.sum().item())
        with torch.inference_mode():
            states = self.model(input_ids, output_hidden_states=True).hidden_states
        return argparse.Namespace(
            hidden_states=torch.cat([states[i + 1] for i in self.layers], dim=-1),
            last_hidden_states=states[-1],
        )


def test_sglang_engine(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import specforge.distributed
    import specforge.offline_capture

    started: list[Any] = []
    fake = FakeSglang(model)

    def load(path: str, **options: Any) -> FakeSglang:
        started.append((path, options))
        return fake

    monkeypatch.setitem(sys.modules, "sglang", types.ModuleType("sglang"))
    monkeypatch.setattr(specforge.distributed, "init_distributed", lambda **kw: started.append(kw))
    monkeypatch.setattr(specforge.offline_capture, "load_offline_capture", load, raising=False)
    extract = load_sglang(
        "tiny", LAYERS, capture_method="dspark", dtype=torch.bfloat16, tp_size=2,
        trust_remote_code=False, with_last=True, engine_options={"mem_fraction_static": 0.5},
    )  # fmt: skip
    assert started == [
        {"tp_size": 2},
        ("tiny", {"torch_dtype": torch.bfloat16, "trust_remote_code": False,
                  "mem_fraction_static": 0.5}),
    ]  # fmt: skip
    assert (fake.layers, fake.method) == ([0, 2, 3], "dspark")
    samples = make_samples([9, 5])
    local = TransformersExtractor(model, LAYERS, with_last=True)(samples)
    for one, two in zip(extract(samples), local, strict=True):
        torch.testing.assert_close(one.hidden_states, two.hidden_states, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(one.last, two.last, atol=1e-5, rtol=1e-5)
    assert fake.calls == [14]
    assert SglangExtractor(fake, with_last=False)(samples)[0].last is None


def test_sglang_that_is_not_installed() -> None:
    if shutil.which("nvidia-smi"):
        pytest.skip("an engine might start here")
    with pytest.raises(UserError, match="--backend sglang needs SGLang and a GPU"):
        load_sglang(
            "tiny", LAYERS, capture_method="dflash", dtype=torch.float32, tp_size=1,
            trust_remote_code=False, with_last=False, engine_options={},
        )  # fmt: skip


# The verb itself, on a run file.


@pytest.fixture
def run_file(target: Path, tmp_path: Path) -> Path:
    draft = {
        "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "hidden_size": 32,
        "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 62, "block_size": 4,
        "num_target_layers": 4, "max_position_embeddings": 256,
        "dflash_config": {"target_layer_ids": list(LAYERS), "mask_token_id": 3},
    }  # fmt: skip
    draft_file = tmp_path / "draft.json"
    draft_file.write_text(json.dumps(draft))
    document = {
        "model": {
            "target_model_path": str(target),
            "draft_model_config": str(draft_file),
        },
        "data": {"hidden_states_path": str(tmp_path / "cache"), "max_length": 40},
        "output_dir": str(tmp_path / "out"),
    }
    path = tmp_path / "dstill.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.fixture
def conversations(tmp_path: Path) -> Path:
    rows = []
    for i in range(7):
        answer = " ".join(f"w{(i + j) % 50}" for j in range(3 + i % 3))
        rows.append(
            {"id": f"c{i}", "conversations": [{"role": "user", "content": f"w{i}"},
                                              {"role": "assistant", "content": answer}]}
        )  # fmt: skip
    return write_lines(tmp_path / "answers.jsonl", rows)


def words(run_file: Path, conversations: Path, *more: object) -> list[str]:
    return [
        "--config", str(run_file), "--conversations", str(conversations), "--shard-size", "3",
        *map(str, more),
    ]  # fmt: skip


def run_verb(run_file: Path, conversations: Path, *more: object) -> int:
    parser = argparse.ArgumentParser()
    verb.add_arguments(parser)
    return verb.run(parser.parse_args(words(run_file, conversations, *more)))


def test_the_template_prints_the_day_of_the_answers(
    run_file: Path, conversations: Path, tmp_path: Path, target: Path
) -> None:
    """Not the day of the capture, which may last over midnight and be gone on with later."""
    dated = shutil.copytree(target, tmp_path / "dated")
    tokenizer = make_tokenizer()
    tokenizer.chat_template = "{{ strftime_now('w%-d') }} " + str(tokenizer.chat_template)
    tokenizer.save_pretrained(dated)
    settings = {"date": "2000-01-02"}
    (tmp_path / "answers.jsonl.settings.json").write_text(json.dumps(settings))
    for folder, day in ((target, ""), (dated, "2000-01-02")):
        cache = tmp_path / f"cache of {folder.name}"
        run_verb(run_file, conversations, "--output", cache, f"model.target_model_path={folder}")
        manifest = CacheManifest.read(cache)
        assert manifest is not None
        assert manifest.template_day == day
        assert manifest.template_kwargs == {}
    found = torch.load(cache / "data/00000/00000001.ckpt", weights_only=True)
    assert found["input_ids"][0] == tokenizer.convert_tokens_to_ids("w2")


def test_the_verb(
    run_file: Path, conversations: Path, tmp_path: Path, model: Any, target: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    settings = {"temperature": 0.7, "template_kwargs": {"enable_thinking": False}}
    (tmp_path / "answers.jsonl.settings.json").write_text(json.dumps(settings))
    assert run_verb(run_file, conversations) == 0
    cache = tmp_path / "cache"
    assert capsys.readouterr().out == f"{cache}: complete, 7 samples, {WIDTH} wide, float32\n"
    manifest = CacheManifest.read(cache)
    assert manifest is not None
    assert manifest.target == str(target)
    assert manifest.target_layer_ids == LAYERS
    assert manifest.keys == ("input_ids", "loss_mask", "hidden_states")
    assert manifest.generation == settings
    assert manifest.template_kwargs == {"enable_thinking": False}
    assert manifest.chat_template == "tokenizer"
    assert manifest.draft_config["dflash_config"]["target_layer_ids"] == list(LAYERS)
    assert manifest.options["batch_tokens"] == 8192
    found = torch.load(cache / "data/00000/00000001.ckpt", weights_only=True)
    assert found["input_ids"].tolist() == [1, 7, 6, 11, 2, 6, 1, 8, 6, 11, 12, 13, 14, 2, 6]
    assert found["loss_mask"].tolist() == [0] * 9 + [1] * 5 + [0]
    sample = TokenSample("", found["input_ids"], found["loss_mask"])
    torch.testing.assert_close(
        found["hidden_states"], expected(model, sample), atol=1e-5, rtol=1e-5
    )


def test_the_verb_for_our_modes(run_file: Path, conversations: Path, tmp_path: Path) -> None:
    run_verb(run_file, conversations, "--mode", "dstill_teacher", "--output", tmp_path / "t",
             "--dtype", "bfloat16")  # fmt: skip
    manifest = CacheManifest.read(tmp_path / "t")
    assert manifest is not None
    assert (manifest.strategy, manifest.dtype) == ("dflash", "bfloat16")
    found = torch.load(tmp_path / "t/data/00000/00000000.ckpt", weights_only=True)
    assert found["hidden_states"].dtype == torch.bfloat16


def test_the_verb_for_float8(run_file: Path, conversations: Path, tmp_path: Path) -> None:
    for dtype in ("fp8", "float32"):
        run_verb(run_file, conversations, "--output", tmp_path / dtype, "--dtype", dtype)
    manifest = CacheManifest.read(tmp_path / "fp8")
    assert manifest is not None
    assert manifest.dtype == "float8_e4m3fn"
    assert manifest.keys == ("input_ids", "loss_mask", "hidden_states", "hidden_states_scale")
    for name in ("data/00000/00000000.ckpt", "data/00002/00000006.ckpt"):
        stored = read_tensors(tmp_path / "fp8" / name)
        states = load_features(tmp_path / "float32" / name)["hidden_states"]
        assert tuple(stored) == manifest.keys
        values, scales = encode_float8(states, layers=len(LAYERS))
        assert torch.equal(stored["hidden_states"].float(), values.float())
        assert torch.equal(stored["hidden_states_scale"], scales)


def test_float8_is_refused_for_dspark(run_file: Path, conversations: Path, tmp_path: Path) -> None:
    draft = tmp_path / "draft.json"
    draft.write_text(draft.read_text().replace("DFlashDraftModel", "DSparkDraftModel"))
    with pytest.raises(UserError, match="learns from the target's last states"):
        run_verb(run_file, conversations, "--mode", "dspark", "--dtype", "fp8")


@pytest.mark.parametrize("mode", [None, "dspark", "dstill_student"])
def test_the_verb_for_dspark(
    run_file: Path, conversations: Path, tmp_path: Path, mode: str | None
) -> None:
    """The draft config alone decides what our modes' features are."""
    draft = tmp_path / "draft.json"
    draft.write_text(draft.read_text().replace("DFlashDraftModel", "DSparkDraftModel"))
    run_verb(run_file, conversations, *(["--mode", mode] if mode else []), "--limit", 2)
    manifest = CacheManifest.read(tmp_path / "cache")
    assert manifest is not None
    assert manifest.strategy == "dspark"
    found = torch.load(tmp_path / "cache/data/00000/00000001.ckpt", weights_only=True)
    assert list(found) == ["input_ids", "loss_mask", "hidden_states", "target_last_hidden_states"]
    length = len(found["input_ids"])
    assert found["target_last_hidden_states"].shape == (length, 32)
    # The last of the captured layers is the target's last: after the final norm in both.
    assert torch.equal(found["target_last_hidden_states"], found["hidden_states"][:, -32:])


def test_wrong_modes_are_refused(run_file: Path, conversations: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="unknown mode 'dflahs'"):
        run_verb(run_file, conversations, "--mode", "dflahs")
    draft = tmp_path / "draft.json"
    draft.write_text(draft.read_text().replace('"target_layer_ids": [0, 2, 3]', '"a": 1'))
    with pytest.raises(UserError, match="target_layer_ids is missing"):
        run_verb(run_file, conversations)


@pytest.mark.parametrize("device", ["cuda:77", "gpu"])
def test_a_device_that_is_not_there_is_told_first(
    run_file: Path, conversations: Path, tmp_path: Path, device: str
) -> None:
    with pytest.raises(UserError) as caught:
        run_verb(run_file, conversations, "--device", device)
    assert str(caught.value).startswith(f"--device {device}: cannot be used on this machine (")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "cache").exists()


def test_a_cut_at_max_length_drops(run_file: Path, conversations: Path) -> None:
    with pytest.raises(
        UserError, match=r"gave a usable sample: no two neighbouring scored tokens \(7\); "
    ):
        run_verb(run_file, conversations, "data.max_length=10")


ALTERNATING = (
    "{% for m in messages %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@pytest.mark.parametrize("template", ["tokenizer", "lfm"])
def test_a_conversation_that_the_template_refuses_is_left_out_and_counted(
    run_file: Path, conversations: Path, tmp_path: Path, target: Path,
    capsys: pytest.CaptureFixture[str], template: str,
) -> None:  # fmt: skip
    """One such line must not end a capture that runs for hours."""
    strict = shutil.copytree(target, tmp_path / "strict")
    (strict / "chat_template.jinja").write_text(ALTERNATING)
    asked, answered = {"role": "user", "content": "w0"}, {"role": "assistant", "content": "w1 w2"}
    bad = {"id": "bad", "conversations": [asked, asked, answered]}
    with conversations.open("a", encoding="utf-8") as handle:
        handle.write(json.dumps(bad) + "\n")
    more = (f"model.target_model_path={strict}", "--chat-template", template)
    assert run_verb(run_file, conversations, *more) == 0
    assert "; 1 left out: refused by the chat template\n" in capsys.readouterr().out
    manifest = CacheManifest.read(tmp_path / "cache")
    assert manifest is not None
    assert (manifest.samples, manifest.dropped_ids) == (
        7,
        {"refused by the chat template": ["bad"]},
    )
    only_bad = write_lines(tmp_path / "bad.jsonl", [bad])
    with pytest.raises(UserError, match="'bad': the chat template refuses it: roles must alternat"):
        run_verb(run_file, only_bad, *more, "--output", tmp_path / "other")


def test_ranks_of_torchrun_share_the_work(
    run_file: Path, conversations: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_verb(run_file, conversations, "--output", tmp_path / "one")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in ("1", "0"):
        assert not (tmp_path / "two/manifest.json").exists()
        monkeypatch.setenv("RANK", rank)
        run_verb(run_file, conversations, "--output", tmp_path / "two")
    assert files_of(tmp_path / "two") == files_of(tmp_path / "one")
    with pytest.raises(UserError, match="--tp-size 3 does not divide the 2 ranks of this run"):
        run_verb(run_file, conversations, "--backend", "sglang", "--tp-size", 3)
