"""Bad input, each argument of each public function: the error's class, the argument, the remedy."""

from __future__ import annotations

import re
from functools import partial

import pytest
import torch

import elbowroom as er
from elbowroom.errors import ArgumentTypeError, ArgumentValueError, ElbowroomError
from elbowroom.losses.variants import Decoupled, Leaky, RareOnly, Softminus
from elbowroom.margins import Annealed, ByNorms, MarginRule

pytestmark = pytest.mark.usefixtures("unchecked")

N, V, D = 4, 7, 3
NAN, INF = float("nan"), float("inf")
TYPE, VALUE = ArgumentTypeError, ArgumentValueError
META = torch.device("meta")


class OtherRule(MarginRule):
    def at(self, progress):
        return self


def ids(*shape, fill=1):
    return torch.full(shape or (N,), fill)


def mask(size=V, dtype=torch.bool, device=None):
    return torch.zeros(size, dtype=dtype, device=device)


# Argument, bad value, error, words of the message; several arguments as a dictionary.
BOTH = [
    ("target", ids().float(), TYPE, r"integers.*torch.float32.*\.long\(\)"),
    ("target", ids().bool(), TYPE, "integers.*torch.bool"),
    ("target", [1, 2, 3, 4], TYPE, r"a tensor, got \[1, 2"),
    ("target", ids(N + 1), VALUE, r"shape \(4,\).*shape \(5,\)"),
    ("target", ids(N, 1), VALUE, r"shape \(4,\)"),
    ("target", ids().to(META), VALUE, r"on cpu.*on meta; move it with \.to\("),
    ("target", ids(fill=V), VALUE, r"from 0 to 6, or ignore_index \(-100\).*number of rows"),
    ("target", ids(fill=-1), VALUE, "from 0 to 6"),
    ("margin", -1.0, VALUE, r'at least 0, got -1\.0; for ordinary.*float\("inf"\)'),
    ("margin", NAN, VALUE, 'at least 0, got nan; for ordinary.*"inf"'),
    ("margin", "wide", TYPE, "a number, got 'wide'"),
    ("margin", None, TYPE, "a number, got None"),
    ("margin", True, TYPE, "a number, got True"),
    ("margin", torch.tensor(-1.0), VALUE, "at least 0, got a negative value or NaN"),
    ("margin", torch.tensor([1.0, 1.0, NAN, 1.0]), VALUE, "at least 0"),
    ("margin", torch.tensor([1.0, 1.0, -0.1, 1.0]), VALUE, "at least 0"),
    ("margin", torch.ones(N + 1), VALUE, r"a number, or shape \(\) or \(4,\).*shape \(5,\)"),
    ("margin", torch.ones(N, V), VALUE, r"shape \(4, 7\)"),
    ("margin", torch.ones(N, device=META), VALUE, r"on cpu.*on meta"),
    ("logit_scale", 0.0, VALUE, "above 0, got 0"),
    ("logit_scale", -1.0, VALUE, "above 0"),
    ("logit_scale", INF, VALUE, "finite"),
    ("logit_scale", NAN, VALUE, "got nan"),
    ("logit_scale", torch.tensor(1.0), TYPE, "a number, got a torch.float32 tensor"),
    ("ignore_index", 1.5, TYPE, "an integer, got 1.5"),
    ("ignore_index", None, TYPE, "an integer, got None"),
    ("reduction", "average", VALUE, "'none' or 'mean' or 'sum', got 'average'"),
    ("reduction", None, VALUE, "'none' or 'mean' or 'sum', got None"),
    ("normalizer", 0.0, VALUE, "above 0"),
    ("normalizer", -3, VALUE, "above 0"),
    ("normalizer", NAN, VALUE, "above 0"),
    ("normalizer", "four", TYPE, "a number"),
    ("normalizer", torch.ones(2), VALUE, r"shape \[\], got shape \(2,\)"),
    ("normalizer", torch.tensor(-3.0), VALUE, "at least 0, got a negative one or NaN"),
    ("normalizer", torch.tensor(NAN), VALUE, "at least 0, got a negative one or NaN"),
    ({"normalizer": 3.0, "reduction": "sum"}, None, VALUE, "unless reduction is.*'sum'"),
    ({"normalizer": 3.0, "reduction": "none"}, None, VALUE, "unless reduction is.*'none'"),
    ("token_weights", torch.ones(N + 1), VALUE, r"shape \(4,\).*\(5,\)"),
    ("token_weights", torch.ones(N).long(), TYPE, r"floating-point.*\.float\(\)"),
    ("token_weights", [1.0] * N, TYPE, "tensor"),
    ("token_weights", torch.ones(N, device=META), VALUE, "on cpu.*on meta"),
    ("z_loss", -0.1, VALUE, "at least 0, got -0.1"),
    ("z_loss", INF, VALUE, "finite"),
    ("z_loss", None, TYPE, "a number"),
    ("label_smoothing", 1.0, VALUE, "below 1, got 1.0"),
    ("label_smoothing", -0.1, VALUE, "at least 0"),
    ("label_smoothing", "0.1", TYPE, "a number"),
    ("protect", mask(dtype=torch.int64), TYPE, "boolean.*torch.int64.*TokenCounts.rare"),
    ("protect", [True] * V, TYPE, "tensor"),
    ("protect", mask(V + 1), VALUE, r"shape \(7,\).*shape \(8,\)"),
    ("protect", mask((1, V)), VALUE, r"shape \(7,\)"),
    ("protect", mask(device=META), VALUE, "on cpu.*on meta"),
    ("variant", "softminus", TYPE, "elbowroom.variants, got 'softminus'"),
    ("variant", Softminus, TYPE, "elbowroom.variants"),
    ({"variant": RareOnly(mask(V + 1))}, "rows", VALUE, r"shape \(7,\).*shape \(8,\)"),
    ({"variant": RareOnly(mask(device=META))}, "rows", VALUE, "on cpu.*on meta"),
    ({"variant": Softminus(), "margin": 0.0}, "margin", VALUE, "above 0.*erase the target"),
    (
        {"variant": Softminus(), "margin": torch.tensor([1.0, 0.0, 1.0, 1.0])},
        "margin",
        VALUE,
        "above 0.*erase the target",
    ),
    ({"margin": Annealed(1.0, 2.0)}, "progress", VALUE, r"progress=step / steps.*\.fill_"),
    ({"margin": Annealed(1.0, 2.0), "progress": 1.5}, "progress", VALUE, "at most 1"),
    ({"margin": Annealed(1.0, 2.0), "progress": torch.tensor(2.0)}, "progress", VALUE, "0 to 1"),
    ({"margin": Annealed(1.0, 2.0), "progress": "half"}, "progress", TYPE, "a number"),
    ("progress", 1.5, VALUE, "at most 1"),  # though a number as margin makes no use of it
    ("progress", torch.ones(2), VALUE, r"shape \(\)"),
    ("stats", "yes", TYPE, "True or False"),
]
LOGITS = [
    ("logits", torch.zeros(N, V).long(), TYPE, r"floating-point.*torch.int64.*\.float\(\)"),
    ("logits", [[0.0] * V] * N, TYPE, "a tensor"),
    ("logits", torch.tensor(1.0), VALUE, r"\[\.\.\., V\]"),
    ("logits", torch.zeros(N, 0), VALUE, r"V at least 1, got \(4, 0\)"),
    ("variant", Decoupled(), TYPE, "got Decoupled; use linear_thresholded_cross_entropy"),
    ("margin", ByNorms(0.5), TYPE, "got ByNorms; use linear_thresholded_cross_entropy"),
    (
        {"margin": Annealed(ByNorms(0.5), ByNorms(0.7)), "progress": 0.5},
        "margin",
        TYPE,
        "got ByNorms; use linear_thresholded_cross_entropy",
    ),
]
LINEAR = [
    ("hidden", torch.zeros(N, D).long(), TYPE, r"floating-point.*torch.int64.*\.float\(\)"),
    ("hidden", [[0.0] * D] * N, TYPE, "a tensor"),
    ("hidden", torch.zeros(N, D + 1), VALUE, r"D = 3, as in the weight, got shape \(4, 4\)"),
    ("hidden", torch.tensor(1.0), VALUE, r"\[\.\.\., D\]"),
    ("weight", torch.zeros(V, D).long(), TYPE, "floating-point"),
    ("weight", torch.zeros(V), VALUE, r"\[V, D\] or \[R, V, D\].*got shape \(7,\)"),
    ("weight", torch.zeros(1, 1, V, D), VALUE, r"\[V, D\] or"),
    ("weight", torch.zeros(0, D), VALUE, r"none of them 0, got shape \(0, 3\)"),
    ("weight", torch.zeros(V, D).double(), TYPE, r"torch.float32, the dtype of hidden.*autocast"),
    ("weight", torch.zeros(V, D, device=META), VALUE, "on cpu, where hidden is.*on meta"),
    ("bias", torch.zeros(V + 1), VALUE, r"shape \(7,\).*a row of the weight.*\(8,\)"),
    ("bias", torch.zeros(V).long(), TYPE, "floating-point"),
    ("bias", torch.zeros(V).double(), TYPE, "torch.float32, the dtype of hidden"),
    ("bias", torch.zeros(V, device=META), VALUE, "on cpu.*on meta"),
    ("bias", 0.0, TYPE, "a tensor, got 0.0"),
    ("softcap", 0.0, VALUE, "above 0.*None for no cap"),
    ("softcap", -30.0, VALUE, "above 0.*None for no cap"),
    ("softcap", "30", TYPE, "a number"),
    ("shift", -1, VALUE, "at least 0, got -1"),
    ("shift", 1.0, TYPE, "an integer"),
    ("shift", True, TYPE, "an integer"),
    ({"shift": 1, "token_weights": torch.ones(N - 1)}, "token_weights", VALUE, r"shape \(4,\)"),
    ({"shift": 1, "margin": torch.ones(N - 2)}, "margin", VALUE, r"shape \(\) or \(3,\)"),
    (
        {"shift": 1, "hidden": torch.zeros(D), "target": torch.tensor(0)},
        "shift",
        VALUE,
        "time dimension",
    ),
    ("margin", OtherRule(), TYPE, "elbowroom.margins, got an object of type OtherRule"),
    ("backend", "cuda", VALUE, "'auto' or 'reference' or 'chunked' or 'triton', got 'cuda'"),
    ("backend", None, VALUE, "'auto' or"),
]
R = 2
RUNS = [
    ("hidden", torch.zeros(N, D), VALUE, r"\[R, \.\.\., D\]"),
    ("hidden", torch.zeros(R + 1, N, D), VALUE, r"R = 2, the weight's run dimension"),
    ("target", ids(N), VALUE, r"shape \(2, 4\)"),
    ("margin", torch.ones(R + 1), VALUE, r"shape \(\) or \(2, 4\) or \(2,\)"),
    ("bias", torch.zeros(V), VALUE, r"shape \(2, 7\)"),
    ("protect", mask((R + 1, V)), VALUE, r"shape \(7,\) or \(2, 7\)"),
    ("normalizer", torch.ones(R + 1), VALUE, r"shape \[\] or \[2\]"),
    ({"margin": ByNorms(torch.ones(R + 1))}, "hidden", VALUE, "R = 3, one alpha a run"),
    (
        {"hidden": torch.zeros(R, D), "target": ids(R), "shift": 1},
        "hidden",
        VALUE,
        r"\[R, \.\.\., D\]",
    ),
]


def cases(table):
    return list(each_case(table))


def each_case(table):
    for argument, value, error, words in table:
        many = isinstance(argument, dict)
        given = argument if many else {argument: value}
        blamed = (value or next(iter(argument))) if many else argument
        shown = str(given if many else value)
        label = f"{blamed}-{re.sub(r'[^a-z0-9.]+', '_', shown)[:30]}"
        yield pytest.param(given, blamed, error, words, id=label)


def own(table):
    """Leave out what is about progress, of which a module has its own."""
    return [row for row in table if "progress" not in row[0] and row[1] != "progress"]


def check(call, blamed, error, words):
    with pytest.raises(error) as caught:
        call()
    message = str(caught.value)
    assert isinstance(caught.value, ElbowroomError)
    assert caught.value.argument == blamed
    assert re.match(rf"{blamed}: expected .+, got .+", message, re.DOTALL), message
    assert re.search(words, message, re.DOTALL), message


def logits_input():
    return {"logits": torch.zeros(N, V), "target": ids(), "margin": 1.0}


def linear_input():
    return {
        "hidden": torch.zeros(N, D),
        "weight": torch.zeros(V, D),
        "target": ids(),
        "margin": 1.0,
    }


def runs_input():
    return {
        "hidden": torch.zeros(R, N, D),
        "weight": torch.zeros(R, V, D),
        "target": ids(R, N),
        "margin": 1.0,
    }


@pytest.mark.parametrize(("given", "blamed", "error", "words"), cases(BOTH + LOGITS))
def test_thresholded_cross_entropy(given, blamed, error, words):
    check(lambda: er.thresholded_cross_entropy(**(logits_input() | given)), blamed, error, words)


@pytest.mark.parametrize("backend", ["reference", "chunked"])
@pytest.mark.parametrize(("given", "blamed", "error", "words"), cases(BOTH + LINEAR))
def test_linear_thresholded_cross_entropy(given, blamed, error, words, backend):
    options = linear_input() | {"backend": backend} | given
    check(lambda: er.linear_thresholded_cross_entropy(**options), blamed, error, words)


@pytest.mark.parametrize(("given", "blamed", "error", "words"), cases(RUNS))
def test_linear_thresholded_cross_entropy_of_runs(given, blamed, error, words):
    options = runs_input() | given
    check(lambda: er.linear_thresholded_cross_entropy(**options), blamed, error, words)


@pytest.mark.parametrize(("given", "blamed", "error", "words"), cases(own(BOTH + LOGITS)))
def test_the_module(given, blamed, error, words):
    options = logits_input() | given
    inputs = [options.pop(name) for name in ("logits", "target")]
    check(lambda: er.ThresholdedCrossEntropy(**options)(*inputs), blamed, error, words)


@pytest.mark.parametrize(("given", "blamed", "error", "words"), cases(own(BOTH + LINEAR)))
def test_the_linear_module(given, blamed, error, words):
    options = linear_input() | {"bias": None} | given
    inputs = [options.pop(name) for name in ("hidden", "weight", "target", "bias")]
    check(lambda: er.LinearThresholdedCrossEntropy(**options)(*inputs), blamed, error, words)


@pytest.mark.parametrize("module", [er.ThresholdedCrossEntropy, er.LinearThresholdedCrossEntropy])
@pytest.mark.parametrize(
    ("given", "blamed", "error", "words"),
    [
        ({"margin": -1.0}, "margin", VALUE, "at least 0, got -1.0; for ordinary"),
        ({"margin": "wide"}, "margin", TYPE, "a number"),
        ({"margin": 1.0, "stats": 1}, "stats", TYPE, "True or False"),
        ({"margin": 1.0, "progress": 0.5}, "progress", TYPE, r"buffer.*progress\.fill_"),
    ],
)
def test_modules_refuse_at_once(module, given, blamed, error, words):
    check(lambda: module(**given), blamed, error, words)


def test_the_linear_module_takes_its_bias_with_the_weight():
    check(
        lambda: er.LinearThresholdedCrossEntropy(1.0, bias=torch.zeros(V)),
        "bias",
        TYPE,
        r"loss\(hidden, weight, target, bias\)",
    )


@pytest.mark.parametrize(
    ("make", "blamed", "error", "words"),
    [
        (partial(Softminus, 0.0), "c", VALUE, "above 0"),
        (partial(Softminus, -1.0), "c", VALUE, "above 0"),
        (partial(Softminus, INF), "c", VALUE, "finite"),
        (partial(Softminus, NAN), "c", VALUE, "got nan"),
        (partial(Softminus, "1"), "c", TYPE, "a number"),
        (partial(Softminus, 1.0, 1), "detach_threshold", TYPE, "True or False"),
        (partial(Leaky, -0.1), "weight", VALUE, "at least 0"),
        (partial(Leaky, 1.1), "weight", VALUE, "at most 1"),
        (partial(Leaky, None), "weight", TYPE, "a number"),
        (partial(RareOnly, [True]), "rows", TYPE, "a tensor"),
        (partial(RareOnly, mask(dtype=torch.uint8)), "rows", TYPE, "boolean.*TokenCounts.rare"),
    ],
)
def test_variants(make, blamed, error, words):
    check(make, blamed, error, words)


def test_bad_values_on_other_devices_wait_for_nothing():
    """On the meta device there are no values, so shapes and dtypes are all that is checked."""
    z, target = torch.zeros(N, V, device=META), ids().to(META)
    loss = er.thresholded_cross_entropy(z, target, torch.tensor(1.0, device=META))
    assert loss.is_meta
