"""`rooflight.accuracy`: which rows it takes, how they resemble a model, what it says of what was never checked."""

import pytest

import rooflight
from rooflight.errors import BadInput
from rooflight.prediction.accuracy import By, architecture, plain_name
from rooflight.prediction.checked_steps import KERNELS, PARTS, shipped_steps
from tests.fixtures.notes import note_texts


@pytest.mark.parametrize(
    ("model", "name", "design"),
    [
        ("timm:vit_base_patch16_224.augreg_in21k", "vit_base_patch16_224", "vit"),
        ("torchvision:resnet50", "resnet50", "resnet"),
        ("tf_efficientnetv2_s", "tf_efficientnetv2_s", "efficientnet"),
        ("hf:openai-community/gpt2", "gpt2", "gpt"),
        ("bert-base", "bert_base", "bert"),
        ("swinv2_cr_tiny_384", "swinv2_cr_tiny_384", "swin"),
    ],
)
def test_names(model: str, name: str, design: str) -> None:
    assert (plain_name(model), architecture(model)) == (name, design)


def test_every_row_stands_once_in_each_kind_of_group() -> None:
    whole = rooflight.accuracy()
    timed_whole = [row for row in whole.rows if row.scope != KERNELS]
    steps = [row for row in timed_whole if row.kind not in PARTS]

    def count(by: By) -> int:
        return sum(group.errors.rows for group in whole.by(by))

    assert count("device") == count("kind") == count("evidence") == count("source") == len(timed_whole)
    assert (
        count("length") == count("bound") == len(steps) and whole.steps is not None and whole.steps.rows == len(steps)
    )
    assert count("kernels") == len(whole.rows) - len(timed_whole)


def test_means_of_groups_are_the_mean_of_all() -> None:
    whole = rooflight.accuracy()
    assert whole.steps is not None
    groups = whole.by("length")
    mean = sum(group.errors.rows * group.errors.mean for group in groups) / whole.steps.rows
    assert mean == pytest.approx(whole.steps.mean)


def test_rows_of_one_device() -> None:
    here = rooflight.accuracy(on="T4")
    assert here.on == "t4" and {row.device for row in here.rows} == {"t4"}
    assert {group.name for group in here.by("device")} == {"t4"}
    assert all(worst.row.device == "t4" for worst in here.worst)


def test_likeness_widens() -> None:
    like = rooflight.accuracy(like="resnet50")
    names = [group.name for group in like.by("likeness")]
    assert names == ["the same model: resnet50", "the same architecture: resnet", "the same kind: convnet"]
    rows = [group.errors.rows for group in like.by("likeness")]
    assert rows == sorted(rows) and rows[0] >= 1
    assert {row.kind for row in like.rows} <= {"convnet", "hybrid"}
    assert all(row.kind not in PARTS for row in like.rows)


@pytest.mark.parametrize("like", ["timm:resnet18", "bert-base", "recurrent"])
def test_likeness_counts_the_steps_that_the_headline_counts(like: str) -> None:
    """Rows of kernels alone are no steps: they have a table of their own."""
    found = rooflight.accuracy(like=like)
    assert found.steps is not None and found.by("likeness")[-1].errors == found.steps
    kernels = sum(row.scope == KERNELS for row in found.rows)
    assert sum(group.errors.rows for group in found.by("kernels")) == kernels


def test_kinds_have_names() -> None:
    names = [rooflight.accuracy(like=kind).by("likeness")[0].name for kind in ("recurrent", "mlp", "convnet", "op")]
    assert names == ["recurrent networks", "MLPs", "convnets", "op"]


def test_several_devices() -> None:
    both = rooflight.accuracy(on="t4, a100")
    assert both.on == "t4,a100-sxm-80" and {row.device for row in both.rows} == {"t4", "a100-sxm-80"}
    assert rooflight.accuracy(on=["t4", "a100"]).rows == both.rows
    alone = [rooflight.accuracy(on=name).rows for name in ("t4", "a100")]
    assert len(both.rows) == sum(map(len, alone))
    (note,) = note_texts(rooflight.accuracy(on="t4,a10").notes)
    assert note.startswith("never checked on a10")


def test_a_model_of_transformers_is_taken_for_a_transformer() -> None:
    (group,) = rooflight.accuracy(like="hf:somebody/zebra-7b").by("likeness")
    assert group.name == "the same kind: transformer"


def test_a_kind_may_be_named() -> None:
    assert {row.kind for row in rooflight.accuracy(like="mlp").rows} == {"mlp"}


def test_a_tier_may_be_named() -> None:
    spec = rooflight.accuracy(on="rtx-4090", tier="spec")
    usual = rooflight.accuracy(on="rtx-4090")
    assert {group.tier for group in spec.by("device")} == {"spec"}
    assert spec.steps is not None and usual.steps is not None and spec.steps.mean > usual.steps.mean


def test_what_was_never_checked_says_what_would_check_it() -> None:
    never = rooflight.accuracy(on="a10")
    assert never.steps is None and never.groups == () and never.rows == ()
    (note,) = note_texts(never.notes)
    assert note.startswith("never checked on a10") and "rooflight measure" in note
    assert any(
        note.startswith("never checked on ") and " a10," in note for note in note_texts(rooflight.accuracy().notes)
    )


def test_other_boards_are_named() -> None:
    tiers = shipped_steps().tiers
    assert "v100-pcie-32" in tiers and "v100-pcie-16" not in tiers
    (note,) = note_texts(rooflight.accuracy(on="v100-pcie-16").notes)
    assert "v100-pcie-32" in note


@pytest.mark.parametrize(
    ("given", "words"),
    [({"on": "nope"}, "no device 'nope'"), ({"like": "nonsense"}, "no row is of such a model"),
     ({"like": "resnet_mine.py:make"}, "what kind of model it is: convnet, transformer"),
     ({"tier": "guessed"}, "no row was predicted so")],
)  # fmt: skip
def test_wrong_questions_are_one_line(given: dict[str, str], words: str) -> None:
    with pytest.raises(BadInput, match=words) as error:
        rooflight.accuracy(**given)
    assert "\n" not in str(error.value)


def test_it_looks_like_a_result() -> None:
    here = rooflight.accuracy(on="t4")
    assert repr(here).startswith("predictions beside timed steps · on t4\n")
    assert "<table" in here._repr_html_()
    frame = here.to_pandas()
    assert set(frame["device"]) == {"t4"} and {"error", "inside", "tier"} <= set(frame.columns)
