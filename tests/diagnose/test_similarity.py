"""Neighbours, clusters and translations, against naive loops and hand-made masks."""

from __future__ import annotations

import string

import pytest
import torch
import torch.nn.functional as F

from elbowroom import diagnose
from elbowroom.diagnose import similarity
from elbowroom.errors import ArgumentTypeError, ArgumentValueError

V, D = 23, 5


@pytest.fixture(params=[2**24, 3 * V], ids=["whole", "chunks"])
def _pairs(request, monkeypatch):
    monkeypatch.setattr(similarity, "PAIRS_AT_ONCE", request.param)


def close(a, b, **options):
    torch.testing.assert_close(a, b, **options)


def cosines(w):
    unit = F.normalize(w, dim=-1)
    return unit @ unit.mT


# --- neighbours


@pytest.mark.usefixtures("_pairs")
def test_neighbours_against_sorting():
    w, ids = torch.randn(2, V, D, dtype=torch.float64), torch.tensor([4, 0, 4, 22, 7, 8, 9])
    found = diagnose.neighbours(w, ids, k=4)
    assert found.ids.shape == found.cosines.shape == (2, 7, 4)
    for r in range(2):
        for n, i in enumerate(ids.tolist()):
            row = cosines(w[r])[i]
            order = [j for j in row.argsort(descending=True).tolist() if j != i][:4]
            assert found.ids[r, n].tolist() == order
            close(found.cosines[r, n], row[order])


def test_all_other_rows_can_be_neighbours():
    found = diagnose.neighbours(torch.eye(3), torch.tensor([1]), k=2)
    assert sorted(found.ids[0].tolist()) == [0, 2]
    assert found.cosines.tolist() == [[0.0, 0.0]]


# --- groups


@pytest.mark.usefixtures("_pairs")
def test_labels_of_rows_against_loops():
    w, label = torch.randn(2, V, D, dtype=torch.float64), torch.arange(V) % 4 - 1
    label[-1] = 4  # a group of one
    w[:, 8] = 0
    found = diagnose.cosine_by_group(w, label, count=6)
    assert found.shape == (2, 6, 6)
    for r in range(2):
        c = cosines(w[r])
        for g in range(5):
            for h in range(5):
                pairs = [
                    c[i, j]
                    for i in range(V)
                    for j in range(V)
                    if label[i] == g and label[j] == h and i != j
                ]
                if pairs:
                    close(found[r, g, h], torch.stack(pairs).mean())
                else:
                    assert found[r, g, h].isnan()
        assert found[r, 5].isnan().all()


@pytest.mark.usefixtures("_pairs")
def test_labels_of_pairs_against_masks():
    w, label = torch.randn(2, V, D, dtype=torch.float64), torch.randint(-1, 4, (V, V))
    found = diagnose.cosine_by_group(w, label, count=5)
    assert found.shape == (2, 5)
    for r in range(2):
        for g in range(4):
            close(found[r, g], cosines(w[r])[label == g].mean())
    assert found[:, 4].isnan().all()


def test_labels_of_rows_agree_with_labels_of_pairs():
    w, label = torch.randn(V, D), torch.randint(3, (V,))
    pairs = 3 * label[:, None] + label
    pairs.fill_diagonal_(-1)
    by_pair = diagnose.cosine_by_group(w, pairs, count=9).view(3, 3)
    close(diagnose.cosine_by_group(w, label, count=3), by_pair)
    assert diagnose.cosine_by_group(w, 2 * label.clamp(max=1)).shape == (3, 3)


# --- the paper's mask


def test_letter_mask_by_hand():
    found = diagnose.letter_mask(".ABab", languages=2)
    name = [[found.names[i] for i in row] for row in found.mask.tolist()]
    assert name[0] == ["ID"] + ["other"] * 4 + ["T"] + ["other"] * 4
    assert name[1] == ["other", "ID", "UC", "C", "other", "other", "T", "UC", "T+C", "other"]
    assert name[8] == ["other", "T+C", "other", "T", "LC", "other", "C", "other", "ID", "LC"]
    assert (found.mask == found.mask.T).all()
    apart = diagnose.letter_mask(".ABab", across=False)
    crossing = apart.mask[:5, 5:]
    assert [found.names[i] for i in crossing[1]] == ["other", "T", "other", "T+C", "other"]
    assert (apart.mask[:5, :5] == found.mask[:5, :5]).all()


def test_letter_mask_of_the_paper():
    characters = sorted("\n !$&',-.3:;?" + string.ascii_letters)
    found = diagnose.letter_mask(characters)
    assert found.mask.shape == (130, 130)
    count = {name: int((found.mask == i).sum()) for i, name in enumerate(found.names)}
    assert count["ID"] == count["T"] == 130
    assert count["C"] == count["T+C"] == 104
    assert count["NA"] == 26 * 26 - 2 * 26
    assert count["UC"] == count["LC"] == 52 * 52 - 2 * 52


def test_letter_mask_with_cosines():
    found = diagnose.letter_mask("Aa")
    w = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).repeat(2, 1)
    means = diagnose.cosine_by_group(w, found.mask, count=len(found.names))
    assert dict(zip(found.names, means.tolist(), strict=True))["T"] == 1
    assert means[found.names.index("C")] == 0
    assert means[found.names.index("NA")].isnan()


# --- translations


@pytest.mark.usefixtures("_pairs")
@pytest.mark.parametrize("k", [1, 3])
def test_translation_score_against_argmax(k):
    w = torch.randn(3, 20, D, dtype=torch.float64)
    w[:, 10:14] = w[:, :4] + 0.2 * torch.randn(3, 4, D, dtype=torch.float64)
    mapping = torch.stack((torch.arange(10, 20), torch.arange(10)), -1)
    found = diagnose.translation_score(w, mapping, k=k)
    for r in range(3):
        nearest = cosines(w[r])[10:, :10].topk(k).indices
        close(found[r], (nearest == torch.arange(10)[:, None]).any(1).double().mean())


def test_translation_score_of_rows_that_are_all_alike():
    w = torch.tensor([[2.0, 0.0]]).repeat(8, 1)
    mapping = torch.stack((torch.arange(4, 8), torch.arange(4)), -1)
    assert diagnose.translation_score(w, mapping).item() == 0.25
    assert diagnose.translation_score(w, mapping, k=2).item() == 0.5
    w[5] = torch.nan
    assert diagnose.translation_score(w, mapping).isnan()


def test_two_sources_may_share_a_translation():
    w = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.1], [1.0, 0.2], [0.1, 1.0]])
    mapping = torch.tensor([[2, 0], [3, 0], [4, 1]])
    assert diagnose.translation_score(w, mapping).item() == 1


# --- bad input

GOOD, IDS = torch.ones(4, 3), torch.tensor([0, 1])


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("call", "name", "kind"),
    [
        (lambda: diagnose.neighbours(GOOD, IDS, k=4), "k", ArgumentValueError),
        (lambda: diagnose.neighbours(GOOD, IDS, k=1.0), "k", ArgumentTypeError),
        (lambda: diagnose.neighbours(GOOD, IDS + 3), "ids", ArgumentValueError),
        (lambda: diagnose.neighbours(GOOD, IDS[:0]), "ids", ArgumentValueError),
        (lambda: diagnose.neighbours(GOOD.int(), IDS), "weight", ArgumentTypeError),
        (lambda: diagnose.cosine_by_group(GOOD, IDS), "labels", ArgumentValueError),
        (lambda: diagnose.cosine_by_group(GOOD, GOOD), "labels", ArgumentTypeError),
        (
            lambda: diagnose.cosine_by_group(GOOD, torch.arange(4), count=3),
            "labels",
            ArgumentValueError,
        ),
        (
            lambda: diagnose.cosine_by_group(GOOD, torch.arange(4), count=0),
            "count",
            ArgumentValueError,
        ),
        (lambda: diagnose.letter_mask(""), "characters", ArgumentValueError),
        (lambda: diagnose.letter_mask("aa"), "characters", ArgumentValueError),
        (lambda: diagnose.letter_mask(["ab"]), "characters", ArgumentTypeError),
        (lambda: diagnose.letter_mask("ab", 0), "languages", ArgumentValueError),
        (lambda: diagnose.letter_mask("ab", across="no"), "across", ArgumentTypeError),
        (lambda: diagnose.letter_mask(65), "characters", ArgumentTypeError),
        (lambda: diagnose.translation_score(GOOD, IDS), "mapping", ArgumentValueError),
        (lambda: diagnose.translation_score(GOOD, GOOD[:, :2]), "mapping", ArgumentTypeError),
        (
            lambda: diagnose.translation_score(GOOD, torch.tensor([[0, 4]])),
            "mapping",
            ArgumentValueError,
        ),
        (
            lambda: diagnose.translation_score(GOOD, torch.tensor([[0, 1]]), k=0),
            "k",
            ArgumentValueError,
        ),
    ],
)
def test_bad_input(call, name, kind):
    with pytest.raises(kind, match=rf"^{name}: expected"):
        call()
