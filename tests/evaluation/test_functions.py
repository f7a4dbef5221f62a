"""Bodies of functions judged by reading them."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tiny_models import MASK, SIZE, dit, shaken

from prism.data.function_rows import FunctionRows
from prism.data.functions import Function
from prism.evaluation.functions import Cost, FunctionsRun, Jury, judge, write_bodies
from prism.models.attach import attach
from prism.models.cached import Cached
from prism.models.heads import FinalLayerConfig, ProjectionConfig
from prism.models.llama import Llama, LlamaConfig
from prism.sampling.draw import Draw
from prism.sampling.policy import Pair
from prism.sampling.remask import Fixed, LowQuality
from prism.sampling.unmask import Counted

END = 1
PROMPT = 'import math\n\n\ndef area(radius):\n    """The area of a circle."""'
AREA = Function("shapes", "shapes/round.py", "area", 3, PROMPT, "\n    return math.pi * radius**2", documented=True)
HELPED = Function("s", "s.py", "f", 1, 'def f(x):\n    """Doubled."""', "\n    return twice(x)", True, ("twice",))


def test_the_original_is_sound_and_exact() -> None:
    verdict = judge(AREA, AREA.body)
    assert verdict.sound
    assert verdict.exact
    assert (verdict.lines, verdict.repeated, verdict.undefined) == (1, 0.0, ())


def test_layout_and_comments_do_not_matter() -> None:
    assert judge(AREA, "\n    # pi r²\n    return (math.pi * radius ** 2)").exact
    assert not judge(AREA, "\n    return math.pi * radius**3").exact
    assert not judge(AREA, AREA.body + "\n\n\nprint(area(1))").exact


@pytest.mark.parametrize(
    "body", ["\n    return math.pi * (radius", "\n  return 1\n    return 2", "\n\x00", "\nreturn 1"]
)
def test_what_is_no_python(body: str) -> None:
    verdict = judge(AREA, body)
    assert not verdict.parses
    assert not verdict.sound
    assert not verdict.trivial


def test_undefined_names_but_not_those_of_the_module() -> None:
    verdict = judge(AREA, "\n    return PI * square(radius)")
    assert verdict.parses
    assert verdict.undefined == ("PI", "square")
    assert not verdict.defined
    assert judge(HELPED, "\n    return twice(x) + 0").sound
    assert judge(HELPED, "\n    return thrice(x)").undefined == ("thrice",)


@pytest.mark.parametrize(
    "body",
    ["", "\n    pass", "\n    return", "\n    return None", "\n    ...", "\n    raise NotImplementedError('later')"],
)
def test_doing_nothing_is_not_sound(body: str) -> None:
    """Or whoever writes nothing would win."""
    verdict = judge(AREA, body)
    assert verdict.parses
    assert verdict.trivial
    assert not verdict.sound


def test_a_second_function_does_not_hide_an_empty_first() -> None:
    assert judge(AREA, "\n    pass\n\n\ndef more(x):\n    return x + 1").trivial


def test_a_helper_before_it_does_not_speak_for_a_function() -> None:
    """Whole programs begin with what they need."""
    whole = Function("HumanEval/0", "", "area", 1, "", AREA.text, documented=True)
    helper, empty = "def square(x):\n    return x * x\n\n\n", "def later():\n    pass\n\n\n"
    assert judge(whole, f"{helper}def area(radius):\n    pass\n").trivial
    assert judge(whole, f"{empty}{AREA.text}").sound
    assert judge(whole, "def other():\n    pass\n").trivial


def test_summary_counts_and_has_intervals() -> None:
    bodies = [AREA.body, "\n    pass", "\n    return (", "\n    x = 1\n    x = 1\n    return rad"]
    run = FunctionsRun.of([AREA] * 4, bodies)
    found = run.summary()
    assert (found["parses"], found["defined"], found["sound"], found["trivial"]) == (0.75, 0.5, 0.25, 0.25)
    assert found["parses_interval"][0] < 0.75 < found["parses_interval"][1]
    assert found["lines"] == 1.5
    assert found["lines_of_the_originals"] == 1
    assert found["distinct_bodies"] == 1
    assert found["repeated_lines"] == pytest.approx(1 / 12)
    assert FunctionsRun.of([AREA] * 2, ["\n    pass"] * 2).summary()["distinct_bodies"] == 0.5


def test_every_function_needs_a_body() -> None:
    with pytest.raises(ValueError, match="1 bodies for 2 functions"):
        FunctionsRun.of([AREA, AREA], ["\n    pass"])


def test_a_jury_says_what_one_judge_says() -> None:
    functions, bodies = (
        [AREA, HELPED] * 3,
        ["\n    pass", "\n    return x", AREA.body, "\n    (", "", "\n    thrice(x)"],
    )
    cost = Cost(np.ones(6, int), np.zeros(6, int), np.zeros(6, int), 1.0)
    jury = Jury(2)
    runs = [judging.run() for judging in (jury.call(functions, bodies, cost), jury.call([AREA], [AREA.body]))]
    assert runs[0] == FunctionsRun.of(functions, bodies, cost)
    assert runs[1].verdicts[0].exact
    with pytest.raises(ValueError, match="1 bodies for 2 functions"):
        jury.call([AREA, AREA], ["\n    pass"])


WORDS = SimpleNamespace(decode=lambda ids, clean_up_tokenization_spaces: " ".join(map(str, ids)))


def seven(*prompts: int) -> FunctionRows:
    """Rows whose first tokens are given."""
    tokens = torch.randint(2, MASK, (7, 12), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    return FunctionRows(tokens, torch.tensor(prompts, dtype=torch.int32), torch.arange(7), END)


@pytest.mark.parametrize("suffix", [False, True])
def test_with_a_cache_a_body_does_not_profit_from_others(suffix: bool) -> None:
    """One to three blocks: where one begins everything is computed, for whoever is written at the same time."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "layers": 3, "heads": 4, "kv_heads": 4, "intermediate_size": 32, "head_size": 8}
    config = LlamaConfig(vocab_size=MASK + 1, mask_id=MASK, length=12, **sizes)
    model = attach(Llama(config), ProjectionConfig(32)).eval().double()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.5)  # so that every token matters to every other
    rows, policy = seven(2, 9, 5, 2, 6, 9, 3), Pair(Counted(), LowQuality(Fixed(1)))

    def written(batch: int) -> list[str]:
        cached, way = Cached(model, suffix=suffix), {"steps": 9, "block": 4, "mask_id": MASK, "batch": batch}
        return write_bodies(cached, WORDS, rows, policy, **way, draw=Draw(temperature=0.0))[0]

    alone = written(1)
    assert written(3) == written(7) == alone
    every = write_bodies(model, WORDS, rows, policy, steps=9, block=4, mask_id=MASK, draw=Draw(temperature=0.0))[0]
    assert every != alone, "the model is one to which a cache makes no difference"


def test_batches_of_one_shape_write_the_same_bodies() -> None:
    """Seven rows, at most three at once: three batches of three, the last filled up and cut again."""
    model = shaken(attach(shaken(dit(), seed=1), FinalLayerConfig(SIZE)), seed=2).eval().double()
    rows, seen, predict = seven(2, 3, 4, 5, 2, 3, 4), [], model.predict

    def watched(x: torch.Tensor, attend: torch.Tensor | None = None) -> object:
        seen.append(tuple(x.shape))
        return predict(x, attend)

    policy = Pair(Counted(), LowQuality(Fixed(1)))
    alone, cost_alone = write_bodies(model, WORDS, rows, policy, steps=4, mask_id=MASK, batch=1)
    model.predict = watched
    bodies, cost = write_bodies(model, WORDS, rows, policy, steps=4, mask_id=MASK, batch=3)
    assert set(seen) == {(3, 12)}
    assert bodies == alone
    assert len(bodies) == 7
    assert (cost.forwards.tolist(), cost.remasks.tolist()) == ([4] * 7, cost_alone.remasks.tolist())
    assert not any(f" {END} " in f" {body} " for body in bodies)
