"""Which evaluations are runs of one setting, and what the settings are called."""

from __future__ import annotations

from specforge_dstill.evaluation.report import Report
from specforge_dstill.reporting.settings import Method, settings_of, template_text
from tests.reporting.examples import decoded, example


def test_checkpoints_versions_and_dates_do_not_part_runs() -> None:
    reports = [
        example(checkpoints={"student": {"weights": str(n)}}, date=str(n), versions={"torch": "x"})
        for n in range(3)
    ]
    (setting,) = settings_of(enumerate(reports))
    assert list(setting.reports) == [0, 1, 2]
    assert (setting.letter, setting.suffix) == ("", "")
    assert len(setting.runs(Method("student", 1))) == 3


def test_other_settings_and_other_prompts_stand_apart() -> None:
    other_prompts = Report(4, decoded().scores, example().details)
    reports = (
        *(example(), decoded(), decoded(1.0)),
        *(example(template_kwargs={}), other_prompts, decoded(seed=3)),
    )
    found = settings_of(enumerate(reports))
    assert [list(setting.reports) for setting in found] == [[0, 4], [1, 5], [2], [3]]
    assert [setting.letter for setting in found] == ["A", "B", "C", "D"]
    assert found[0].suffix == ", setting A"


def test_other_prompts_under_the_same_names_stand_apart() -> None:
    """Where results tell what they asked; those of earlier versions do not, and join the rest."""

    def asked(told: str) -> Report:
        return example(prompts={"easy": {"source": "easy.jsonl", "hash": told}})

    reports = (example(), asked("a"), asked("b"), asked("a"))
    found = settings_of(enumerate(reports))
    assert [list(setting.reports) for setting in found] == [[0, 1, 3], [2]]


def test_a_method_measured_elsewhere_joins_the_setting() -> None:
    both = example()
    parts = (Report(4, both.scores[:3], both.details), Report(4, both.scores[3:], both.details))
    (setting,) = settings_of(enumerate(parts))
    assert [str(method) for method in setting.methods] == [
        *("dflash", "teacher", "teacher, 3 passes", "student")
    ]
    assert list(setting.runs(Method("student", 1))) == [1]


def test_nothing_measured() -> None:
    assert settings_of([]) == []
    assert settings_of([(0, Report(4, ()))]) == []


def test_the_settings_in_words() -> None:
    greedy, sampled = settings_of(enumerate([example(), decoded(0.6)]))
    assert (greedy.temperature, sampled.temperature) == (0, 0.6)
    assert greedy.reasoning == "enable_thinking = false"
    assert template_text({}) == "the template's default"
    assert not greedy.has_speed(Method("student", 1))
    assert sampled.has_speed(Method("student", 1))
