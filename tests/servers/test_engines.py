"""What is read from a server: which engine it is, its model, its counters, an answer's drafts."""

from __future__ import annotations

import pytest

from specforge_dstill.errors import UserError
from specforge_dstill.servers.endpoint import Endpoint
from specforge_dstill.servers.engines import Counters, Drafted, model_name
from specforge_dstill.servers.sglang import SGLang
from specforge_dstill.servers.vllm import VLLM, read_metrics
from tests.servers.fake import ACCEPTED, ROUNDS, Fake


def at(server: Fake) -> Endpoint:
    return Endpoint.at(server.url, timeout=5)


def test_each_finds_its_own_servers_alone(sglang: Fake, vllm: Fake) -> None:
    found = SGLang.find(at(sglang))
    assert found is not None
    assert (found.name, found.version, found.drafts) == ("SGLang", "0.5.23", True)
    assert found.about == {
        "tp_size": 1,
        "quantization": None,
        "speculative_algorithm": "DFLASH",
        "speculative_draft_model_path": None,
    }
    other = VLLM.find(at(vllm))
    assert other is not None
    assert (other.name, other.version, other.drafts) == ("vLLM", "0.30.0", True)
    assert SGLang.find(at(vllm)) is None
    assert VLLM.find(at(sglang)) is None


def test_servers_without_a_drafter(sglang: Fake, vllm: Fake) -> None:
    sglang.drafts = vllm.drafts = False
    for engine, server in ((SGLang, sglang), (VLLM, vllm)):
        found = engine.find(at(server))
        assert found is not None
        assert not found.drafts
        assert found.of_answer(server.answer({"messages": [{"content": "x"}]})) is None


def test_drafts_of_an_answer(sglang: Fake, vllm: Fake) -> None:
    body = {"messages": [{"content": "x"}], "return_meta_info": True}
    vllm.tells = True
    for engine, server in ((SGLang, sglang), (VLLM, vllm)):
        found = engine.find(at(server))
        assert found is not None
        assert found.of_answer(server.answer(body)) == Drafted(ROUNDS, ACCEPTED)
    one_token = {"choices": [{"meta_info": {"completion_tokens": 1}}]}
    assert SGLang(at(sglang), {"speculative_algorithm": "EAGLE"}).of_answer(one_token) == Drafted(
        0, 0
    )


def test_sglang_that_does_not_tell_its_drafts(sglang: Fake) -> None:
    """An older release, or a router in between: its drafts are not 0 but unknown."""
    found = SGLang.find(at(sglang))
    assert found is not None
    for choice, missing in (
        ({}, "no meta_info"),
        ({"meta_info": None}, "no meta_info"),
        (
            {"meta_info": {"spec_verify_ct": 4, "spec_accept_token_num": 7}},
            "no spec_num_correct_drafts in its meta_info",
        ),
    ):
        told = f"{sglang.url}: an answer of SGLang 0.5.23 has {missing}, .* of 0.5.13 or newer"
        with pytest.raises(UserError, match=told):
            found.of_answer({"choices": [choice]})


def test_counters_are_summed_over_labels() -> None:
    text = """# HELP vllm:x Help {with} braces 3
vllm:x{a="1",b="} 5"} 2.0
vllm:x{a="2"} 3e1 1796018299669
vllm:x_bucket{le="+Inf"} 9
bare 1.5
vllm:x{a="3"} NaN
vllm:x much
torn{"""
    assert read_metrics(text) == {"vllm:x": 32.0, "vllm:x_bucket": 9.0, "bare": 1.5}, "finite ones"


def test_a_snapshot_of_vllm(vllm: Fake) -> None:
    vllm.finished, vllm.rounds, vllm.accepted, vllm.running = 5, 20, 35, 2
    found = VLLM.find(at(vllm))
    assert found is not None
    before = found.snapshot()
    assert before.counters == Counters(Drafted(20, 35), 5, 2)
    vllm.started += 1
    assert found.snapshot().process != before.process


def test_without_counters_vllm_is_refused(vllm: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Fake, "metrics", lambda self: "python_info 1\n")
    with pytest.raises(UserError, match="start the server without --disable-log-stats"):
        VLLM.find(at(vllm))


def test_the_model(sglang: Fake) -> None:
    assert model_name(at(sglang), None) == "tiny", "not the adapter on it"
    assert model_name(at(sglang), "adapter") == "adapter"
    with pytest.raises(UserError, match="no model 'huge' is served; choose with --model: tiny, ad"):
        model_name(at(sglang), "huge")
    sglang.models.append({"id": "other"})
    with pytest.raises(UserError, match="several models are served"):
        model_name(at(sglang), None)


def test_a_list_of_models_that_is_none(sglang: Fake) -> None:
    sglang.models = ["tiny", {"name": "tiny"}]  # type: ignore[list-item]
    with pytest.raises(UserError, match="serves no model"):
        model_name(at(sglang), None)


def test_urls(sglang: Fake) -> None:
    for suffix in ("", "/", "/v1", "/v1/"):
        assert Endpoint.at(f"{sglang.url}{suffix}", timeout=1).url == sglang.url
    for wrong in ("localhost:30000", "ftp://a", "http://"):
        with pytest.raises(UserError, match="is no base URL such as"):
            Endpoint.at(wrong, timeout=1)
    with pytest.raises(UserError, match=r"127.0.0.1:9: no answer \(.*refused\); is the server up"):
        Endpoint.at("http://127.0.0.1:9", timeout=1).get("/version")
